"""Custody: the program that holds secrets, mints short-lived credentials and proves what it did with them."""
