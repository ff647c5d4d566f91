#!/usr/bin/env python3
"""The plot maker: well-formed pictures, points where their values are, the last of equal names, nothing drawn from nothing."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PLOTS = pathlib.Path(__file__).parents[2] / "bench" / "plots"
SVG = "{http://www.w3.org/2000/svg}"


def draw(quality):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "quality.txt").write_text(quality)
        subprocess.run([sys.executable, PLOTS / "draw.py", folder, folder, "quality"], check=True, capture_output=True)
        picture = pathlib.Path(folder, "quality_window.svg")
        return xml.etree.ElementTree.parse(picture).getroot() if picture.exists() else None


def heights(picture):
    return [float(c.get("cy")) for c in picture.iter(SVG + "circle")]


class Draw(unittest.TestCase):
    def test_less_divergence_is_lower(self):
        picture = draw("kl_sweep_window_128 .4\nkl_sweep_window_256 .04\nkl_sweep_window_512 .004\n")
        first, second, third = heights(picture)
        self.assertLess(first, second)
        self.assertAlmostEqual(third - second, second - first, delta=.2)  # equal ratios are equal distances

    def test_the_last_of_equal_names_counts(self):
        twice = draw("kl_sweep_window_128 9\nkl_sweep_window_128 .4\nkl_sweep_window_256 .04\n")
        once = draw("kl_sweep_window_128 .4\nkl_sweep_window_256 .04\n")
        self.assertEqual(heights(twice), heights(once))

    def test_both_texts_and_errors(self):
        picture = draw("kl_sweep_window_128 .4\nkl_sweep_window_128.se .1\nkl_sweep_window_128.text2 .2\nnot a line\nkl_sweep_window_256 x\n")
        self.assertEqual(len(heights(picture)), 2)
        self.assertEqual(len(picture.findall(f"{SVG}line[@stroke-width='1.5']")), 1)
        words = " ".join(t.text for t in picture.iter(SVG + "text"))
        self.assertRegex(words, re.compile("prose.*Python"))

    def test_stored_caches_stand_at_their_ratio(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "kvtc.txt").write_text("kl_predicted_20x .004\nratio_predicted_20x 20.1\nkl_sweep_predicted_42x .016\nratio_sweep_predicted_42x 42\n"
                                                        "kl_expected_predicted_20x 9\nkl_int4_g64 .002\nratio_int4_g64 3.6\nkl_faithful16 .02\n")
            subprocess.run([sys.executable, PLOTS / "draw.py", folder, folder, "kvtc"], check=True, capture_output=True)
            circles = [(float(c.get("cx")), float(c.get("cy"))) for c in xml.etree.ElementTree.parse(pathlib.Path(folder, "kvtc_ratio.svg")).iter(SVG + "circle")]
        self.assertEqual(len(circles), 3)  # no size, no point
        twenty, forty, int4 = circles
        self.assertTrue(int4[0] < twenty[0] < forty[0] and forty[1] < twenty[1] < int4[1])

    def test_nothing_from_nothing(self):
        self.assertIsNone(draw(""))


if __name__ == "__main__":
    unittest.main()
