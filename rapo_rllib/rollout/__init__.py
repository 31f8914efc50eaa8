"""Questions become trajectories. ``loop`` drives an ``engine`` and text environments, and weaves in step traces."""
