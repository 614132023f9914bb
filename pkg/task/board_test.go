package task

import "testing"

func TestTally_KnowsLatenessToAQuarter(t *testing.T) {
	before := -1
	for ms := int64(0); ms < 1<<21; ms += 1 + ms/50 {
		b := LateBucket(ms)
		if b < before || b >= LateBuckets {
			t.Fatalf("%d ms are in bucket %d, after %d", ms, b, before)
		}

		before = b

		if bound := LateBound(b); bound < ms || bound > ms+ms/4+1 {
			t.Fatalf("%d ms are in bucket %d, which goes up to %d", ms, b, bound)
		}
	}
}

func TestTally_AddsUp(t *testing.T) {
	var a, b Tally
	a.Late, b.Late = make([]int64, LateBuckets), make([]int64, LateBuckets)
	for range 98 {
		a.Late[LateBucket(3)]++
	}

	b.Late[LateBucket(40)]++
	b.Late[LateBucket(900)]++
	a.MaxMS, b.MaxMS, b.Failed, a.Rate, b.Rate = 3, 900, 2, []int64{1, 2}, []int64{1, 1, 5}
	a.Add(b)

	r := a.Recent()
	if r.Fired != 100 || r.P50MS != 3 || r.P99MS < 40 || r.P99MS > 50 || r.MaxMS != 900 || r.Failed != 2 {
		t.Errorf("together: %+v", r)
	}

	if len(r.Rate) != 3 || r.Rate[0] != 2 || r.Rate[2] != 5 {
		t.Errorf("the rate: %v", r.Rate)
	}

	if empty := (Tally{}).Recent(); empty.P99MS != 0 || empty.Rate == nil {
		t.Errorf("of nothing: %+v", empty)
	}
}
