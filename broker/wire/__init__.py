"""The data path: how calls travel between the code's connection and the API's."""
