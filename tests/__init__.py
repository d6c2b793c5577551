"""A package by name: gmqtt, a client we test with, installs one called ``tests`` as well."""
