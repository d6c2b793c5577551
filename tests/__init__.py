"""A package, so that no installed package of this name (gmqtt brings one) stands before it."""
