"""Reports about runs: the contents of run directories (`contents`), figures as data (`figures`), drawn for a
browser (`interactive`) or as files (`static`), and the HTML page (`html`). May import training and everything
left of it, but not agent, experiments or cli.
"""
