package task

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestParts_AreKnownByTheirIDs(t *testing.T) {
	at := time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)
	for _, parent := range []string{RunID(at, "k3f9abcd"), RunID(at, "k3f9abcd") + "-p234", RunID(at, "u")} {
		if IsPart(parent) {
			t.Errorf("%s is taken for a part", parent)
		}

		for _, i := range []int{0, 7, MaxParts - 1} {
			id := PartID(parent, i)
			if of, index, ok := ParentOf(id); of != parent || index != i || !ok {
				t.Errorf("%s is part %d of %q: %t", id, index, of, ok)
			}

			if TriggerOfRunID(id) != TriggerPart || !RunBelongs(id, "k3f9abcd") && parent[len(idTime)+1] == 'k' {
				t.Errorf("%s is of trigger %s", id, TriggerOfRunID(id))
			}
		}
	}

	for _, id := range []string{"", "-p0001", "r1-p0001", RunID(at, "k3f9") + "-p00x1", RunID(at, "k3f9") + "-p001"} {
		if IsPart(id) {
			t.Errorf("%q is taken for a part", id)
		}
	}
}

func TestSucceed_NeedsSoMany(t *testing.T) {
	for _, c := range []struct {
		text Succeed
		of   int
		need int
	}{{"", 10, 10}, {"all", 3, 3}, {"any", 3, 1}, {"2", 3, 2}, {"80%", 10, 8}, {"80%", 3, 3}, {"1%", 3, 1}, {"100%", 7, 7}, {"50%", 5, 3}} {
		if need, err := c.text.Need(c.of); need != c.need || err != nil {
			t.Errorf("%q of %d needs %d, %v; want %d", c.text, c.of, need, err, c.need)
		}
	}
}

func TestTarget_ReadsAndWritesCountsAndRules(t *testing.T) {
	for in, out := range map[string]string{
		`{"strategy":"auto","count":"all","succeed":3}`:              `{"strategy":"auto","count":"all","succeed":"3"}`,
		`{"strategy":"auto","count":4,"succeed":"80%"}`:              `{"strategy":"auto","count":4,"succeed":"80%"}`,
		`{"strategy":"auto","count":1,"parts":20,"stagger":"5s"}`:    `{"strategy":"auto","count":1,"parts":20,"stagger":"5s"}`,
		`{"strategy":"auto","count":null,"parts":1,"succeed":"any"}`: `{"strategy":"auto","count":1,"parts":1,"succeed":"any"}`,
	} {
		v := Defaults().Target
		if err := json.Unmarshal([]byte(in), &v); err != nil {
			t.Fatalf("%s: %v", in, err)
		}

		b, err := json.Marshal(v)
		if err != nil || string(b) != out {
			t.Errorf("%s is written as %s, %v", in, b, err)
		}

		if err := v.validate(); err != nil || !v.FansOut() {
			t.Errorf("%s: fans out %t, %v", in, v.FansOut(), err)
		}
	}

	hashed := Target{Strategy: StrategyHash, Key: "k", Count: 2}
	if err := hashed.validate(); err != nil || !hashed.FansOut() {
		t.Errorf("count with a strategy: %v", err)
	}

	if Defaults().Target.FansOut() {
		t.Error("the default fans out")
	}
}

func TestTarget_KnowsHowManyNodesAreEnough(t *testing.T) {
	for _, c := range []struct {
		target Target
		nodes  int
		want   bool
	}{
		{Target{Count: 1}, 0, false}, {Target{Count: 1}, 1, true}, {Target{Count: 1, Parts: 20}, 1, true},
		{Target{Count: 3}, 2, false}, {Target{Count: 3}, 3, true}, {Target{Count: 3, Succeed: "1"}, 2, false},
		{Target{Count: All}, 0, false}, {Target{Count: All}, 1, true}, {Target{Count: All}, MaxParts, true}, {Target{Count: All}, MaxParts + 1, false},
		{Target{Count: All, Succeed: "3"}, 2, false}, {Target{Count: All, Succeed: "3"}, 3, true}, {Target{Count: All, Succeed: "50%"}, 1, true},
	} {
		if got := c.target.Enough(c.nodes); got != c.want {
			t.Errorf("%d nodes for count %s, parts %d, succeed %q: %t", c.nodes, c.target.Count, c.target.Parts, c.target.Succeed, got)
		}
	}
}

func TestFan_AgainHasTheFailedPartsAlone(t *testing.T) {
	f := Fan{Count: 3, Need: 2, Nodes: []string{"a", "b", "c"}, Kept: 0, Parts: []Part{{Index: 0, State: Lost}, {Index: 1, State: Succeeded}, {Index: 2, State: Failed, Checkpoint: "c"}}}
	again := f.Again()
	if !maps.Equal(again.Checkpoints, map[int]string{2: "c"}) {
		t.Errorf("it begins with %v", again.Checkpoints)
	}

	if less := again.Without(1); !slices.Equal(less.Left, []int{0}) || len(less.Checkpoints) > 0 || len(again.Left) != 2 || len(again.Checkpoints) != 1 {
		t.Errorf("without one it is %+v, and itself %+v", *less, *again)
	}

	if !slices.Equal(again.Left, []int{0, 2}) || !slices.Equal(again.Numbers(), []int{0, 2}) || again.Kept != 1 || again.Count != 3 || again.Nodes[2] != "c" || again.Parts != nil {
		t.Errorf("again it is %+v", *again)
	}

	// After another retry, the part that succeeded first still counts.
	again.Parts = []Part{{Index: 0, State: Succeeded}, {Index: 2, State: Failed}}
	if last := again.Again(); !slices.Equal(last.Left, []int{2}) || last.Kept != 2 {
		t.Errorf("the third time it is %+v", *last)
	}
}

func TestFan_KeepsWhatPartsSaidAsFarAsThereIsRoom(t *testing.T) {
	part := func(i int, state State, message string, results map[string]string) Part {
		return Run{ID: PartID("20261120T220000.000Z-k3f9", i), State: state, Message: message, StatusReport: StatusReport{Results: results}, Usage: Usage{CPUMS: 5}}.AsPart()
	}

	long := strings.Repeat("ä", MaxPartMessage)
	f := Fan{Parts: []Part{
		part(0, Succeeded, "", map[string]string{"rows": "7"}),
		part(1, Failed, "a"+long, map[string]string{"rows": strings.Repeat("x", maxPartResults)}),
	}}
	if m := f.Parts[1].Message; len(m) != MaxPartMessage-1 || !utf8.ValidString(m) {
		t.Errorf("%d bytes of the message are kept", len(m))
	}

	if f.Parts[0].Results["rows"] != "7" || f.Parts[1].Results != nil {
		t.Errorf("results: %+v", f.Parts)
	}

	if u := f.Usage(); u.CPUMS != 10 {
		t.Errorf("together: %+v", u)
	}

	f.Fit(320) // this is enough for one

	if f.Parts[1].Message == "" || f.Parts[0].Results != nil || f.Parts[0].Usage.CPUMS != 0 {
		t.Errorf("what failed does not come first: %+v", f.Parts)
	}

	if run := (Run{FanOut: FanOut{Fan: &f}}).OfPart(f.Parts[1]); run.Message != f.Parts[1].Message || run.Usage.CPUMS != 5 {
		t.Errorf("the part is shown as %+v", run)
	}
}
