package task

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

func TestPartNumbers(t *testing.T) {
	t.Parallel()

	for want, n := range map[string]PartNumbers{
		`""`:            {},
		`"7"`:           {7},
		`"0-2"`:         {0, 1, 2},
		`"0,2-3,5,999"`: {0, 2, 3, 5, 999},
	} {
		b, err := json.Marshal(n)
		if err != nil || string(b) != want {
			t.Errorf("%d is %s, %v, want %s", n, b, err, want)
		}

		var back PartNumbers
		if err := json.Unmarshal(b, &back); err != nil || !slices.Equal(n, back) {
			t.Errorf("%s is %d, %v, want %d", b, back, err, n)
		}
	}

	for _, bad := range []string{`[1]`, `1`} {
		if err := json.Unmarshal([]byte(bad), new(PartNumbers)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}

	for _, bad := range []string{`","`, `"1,"`, `"a"`, `"-1"`, `"1-"`, `"2-1"`, `"1,1"`, `"3,1-2"`, `"1100"`, `"0-99999999999"`, `"0-999999"`} {
		if err := json.Unmarshal([]byte(bad), new(PartNumbers)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// The record of a run with many parts is written with each part that is dispatched. What it contains must not grow with
// the number of parts.
func TestFan_RecordOfARunIsShort(t *testing.T) {
	t.Parallel()

	f := &Fan{Count: MaxParts, Need: MaxParts}
	for i := range MaxParts {
		f.Left = append(f.Left, i)
	}

	written := 0
	for len(f.Left) > 0 {
		f = f.Without(0)
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}

		written += len(b)
	}

	t.Logf("%d bytes", written)
	if written > 60*MaxParts {
		t.Errorf("the dispatch of %d parts writes %d bytes", MaxParts, written)
	}
}
