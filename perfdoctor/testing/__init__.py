"""Test doubles shipped with the product."""
