"""Who acts in a simulated world: machines and their services, sensor nodes, operators, and gateways that mean harm."""
