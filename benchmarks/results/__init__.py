"""The tables of the documentation: made anew, or compared with the code that they rest on."""
