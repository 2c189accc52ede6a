"""Enforcement: the program that checks each call against a grant, attaches a credential and forwards it."""
