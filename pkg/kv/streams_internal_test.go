package kv

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestStream_Busy(t *testing.T) {
	for name, c := range map[string]struct {
		heard, progressed bool
		busy              bool
	}{
		"silent: nobody heard anything":                        {busy: false},
		"flooded: others heard events, but no answer to beats": {heard: true, busy: true},
		"alive: others heard an answer that this one missed":   {heard: true, progressed: true, busy: false},
	} {
		st := &stream{epoch: time.Now().Add(-time.Minute)}
		since := time.Now().Add(-time.Second)

		if c.heard {
			st.noteResponse(false)
		}

		if c.progressed {
			st.noteResponse(true)
		}

		if got := st.isBusy(since); got != c.busy {
			t.Errorf("%s: busy is %v", name, got)
		}
	}
}

type countedBeats struct {
	clientv3.Watcher
	beats chan struct{}
}

func (c countedBeats) RequestProgress(context.Context) error {
	c.beats <- struct{}{}
	return nil
}

func TestStreams_PulseFollowsTheMostImpatient(t *testing.T) {
	raw := clientv3.NewCtxClient(t.Context())
	beats := make(chan struct{})
	raw.Watcher = countedBeats{beats: beats}
	c := Wrap(raw, 0)
	calm := c.streams.joinStream(t.Context(), c, 0, time.Hour)
	hasty := c.streams.joinStream(t.Context(), c, 0, time.Millisecond)

	for range 3 {
		select {
		case <-beats:
		case <-time.After(time.Minute):
			t.Fatal("no beat")
		}
	}

	go func() { // a probe may be in progress
		for range beats {
		}
	}()

	c.streams.leaveStream(hasty)
	c.streams.leaveStream(calm) // waits for the end of the probe
	close(beats)

	if len(c.streams.live) != 0 {
		t.Error("a stream without watches is kept")
	}
}

func TestStreams_CondemnMovesOnOnce(t *testing.T) {
	var s streams
	seen := map[int]bool{}
	for class := range streamClassCount {
		first := s.pickStream(class)
		s.closeStream(first)
		second := s.pickStream(class)
		s.closeStream(first) // by another watch of the same stream

		if second == first || s.pickStream(class) != second {
			t.Errorf("streams %d, %d, %d", first, second, s.pickStream(class))
		}

		seen[first], seen[second] = true, true
	}

	if len(seen) != 2*streamClassCount {
		t.Errorf("classes share streams: %v", seen)
	}

	for range 1000 {
		s.closeStream(s.pickStream(0))
		seen[s.pickStream(0)] = true
	}

	if len(seen) > streamClassCount*streamsPerClass {
		t.Errorf("%d streams", len(seen))
	}
}

func TestStreams_CrowdIsSpreadAndSomeKeepApart(t *testing.T) {
	used := map[int]int{}
	for i := range 256 {
		used[FollowConfig{Key: fmt.Sprintf("/carillon/shards/%04d/", i)}.streamClass()]++
	}

	if len(used) != dedicatedClass || used[dedicatedClass] > 0 {
		t.Errorf("watches in each class: %v", used)
	}

	wide := FollowConfig{Key: "a/queue/", WatchKey: "a/", WatchEnd: "a0"}
	if wide.streamClass() != streamClassOf("a/") {
		t.Error("the class is not that of the range watched")
	}

	if m := NewMirror(nil, FollowConfig{Key: "/carillon/nodes/"}); m.cfg.streamClass() != dedicatedClass {
		t.Error("a mirror is among the crowd")
	}
}
