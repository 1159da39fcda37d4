"The package's metadata, all of it read from settings.ini, which is the one place to change it."
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=['='])
parser.read(here / 'settings.ini', encoding='utf-8')
cfg = parser['DEFAULT']
notebooks, structured = cfg['notebooks_requirements'].split(), cfg['structured_requirements'].split()

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'].split(),
    author=cfg['author'], author_email=cfg['author_email'], url=cfg['git_url'], license='Apache-2.0',
    long_description=(here / 'README.md').read_text(encoding='utf-8') if (here / 'README.md').exists() else '',
    long_description_content_type='text/markdown',
    classifiers=['Programming Language :: Python :: 3', 'Topic :: Scientific/Engineering :: Artificial Intelligence'],
    packages=find_packages(include=[cfg['lib_path'], cfg['lib_path'] + '.*']), include_package_data=True, zip_safe=False,
    python_requires='>=' + cfg['min_python'],
    install_requires=cfg['requirements'].split() + [f'{r}; platform_system == "Linux"' for r in cfg['linux_requirements'].split()],
    extras_require={'notebooks': notebooks, 'structured': structured, 'dev': notebooks + structured + cfg['dev_requirements'].split()},
    entry_points={'console_scripts': cfg['console_scripts'].split()},
)
