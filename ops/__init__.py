"""What surrounds the two programs: the demo, working doubles of APIs, measurements, units and documents."""
