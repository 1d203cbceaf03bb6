"""The clip art of `benchmarks.datasets`: titles, descriptions and keywords of pictures."""

from benchmarks.datasets.building import Text
from benchmarks.datasets.clipart import described_pictures

PICTURE = """<svg xmlns="http://www.w3.org/2000/svg"><metadata>
<rdf:RDF xmlns:cc="http://web.resource.org/cc/" xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><cc:Work>
  <dc:title>{title}</dc:title><dc:description>{about}</dc:description>
  <dc:subject><rdf:Bag>{words}</rdf:Bag></dc:subject>
  <dc:creator><cc:Agent><dc:title>an author</dc:title></cc:Agent></dc:creator>
</cc:Work></rdf:RDF></metadata></svg>"""


def test_pictures_have_their_keywords_and_versions_of_one_are_a_group(tmp_path):
    def picture(title: str, about: str, *words: str) -> str:
        return PICTURE.format(title=title, about=about, words="".join(f"<rdf:li>{word}</rdf:li>" for word in words))

    for name, svg in (("frog", picture("frog", "green", "Animal ", "pond", "", "hash(0x86a4aa4)")),
                      ("frog2", picture("frog 2", "frog 2", "animal")), ("untitled", picture("", "", "animal")),
                      ("silent", "<svg/>"), ("cut", picture("cut", "", "animal")[:-20])):
        (tmp_path / f"{name}.svg").write_text(svg)
    assert described_pictures(tmp_path, sorted(tmp_path.iterdir())) == {
        "frog.svg": Text("frog", "green", frozenset(["animal", "pond"]), "frog"),
        "frog2.svg": Text("frog 2", "", frozenset(["animal"]), "frog")}
