from myxtts.data.drops import Drop, DropReport
from myxtts.errors import DropReason


def test_the_table_has_a_line_per_reason_the_sum_and_what_was_replaced_during_training():
    drops = [Drop(DropReason.SILENT, f"s{i}.wav", f"m.csv, line {i}") for i in range(5)]
    drops.append(Drop(DropReason.MISSING, "m.wav", "m.csv, line 9"))
    drops.append(Drop(DropReason.TOO_LONG, "l.wav", "m.csv, line 10", "12.00 s"))
    report = DropReport(lines=10, kept_seconds=5400, drops=drops)
    report.replaced.append(Drop(DropReason.CORRUPT, "x.wav", "step 7, row 3", "replaced by y.wav"))
    assert report.format_table().splitlines() == [
        "reason      clips  files",
        "missing         1  m.wav",
        "silent          5  s0.wav, s1.wav, s2.wav and 2 more",
        "too_long        1  l.wav (12.00 s)",
        "missing: clips must be files beside the metadata file, or in wavs/ beside it.",
        "3 of 10 clips can be used (1.5 h); 7 set aside.",
        "1 replaced during training: x.wav (replaced by y.wav)",
    ]
    replaced = {"reason": "corrupt", "file": "x.wav", "where": "step 7, row 3", "detail": "replaced by y.wav"}
    assert report.to_json()["replaced"] == [replaced]
