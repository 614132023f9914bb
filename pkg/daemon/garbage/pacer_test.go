package garbage

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestGarbagePercent_GivesRoomToASmallHeapAndLittleToALargeOne(t *testing.T) {
	for live, want := range map[uint64][2]int{ // busy, idle
		0: {800, 800}, 1 << 20: {800, 800}, 32 << 20: {400, 400}, 128 << 20: {100, 100}, 200 << 20: {100, 60}, 10 << 30: {100, 40},
	} {
		if busy, idle := gogcPercent(live, false), gogcPercent(live, true); busy != want[0] || idle != want[1] {
			t.Errorf("%d MiB alive: GOGC %d, idle %d, want %v", live>>20, busy, idle, want)
		}
	}
}

func TestWorthCollecting_GrowsWithTheCostOfACollection(t *testing.T) {
	for live, want := range map[uint64]uint64{0: 32 << 20, 64 << 20: 32 << 20, 1 << 30: 256 << 20, 4 << 30: 1 << 30} {
		if got := worthCollecting(live); got != want {
			t.Errorf("%d MiB alive: collects at %d MiB of garbage, want %d", live>>20, got>>20, want>>20)
		}
	}
}

func TestRoomForGarbage_FollowsTheHeapAndEnds(t *testing.T) {
	t.Setenv("GOGC", "")
	former := debug.SetGCPercent(77)
	defer debug.SetGCPercent(former)
	stop := MakeRoom()
	percent := func() int { // the only way to read it is to set it
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	before := percent()
	alive := make([]byte, 64<<20)
	deadline := time.Now().Add(90 * time.Second)
	for percent() == before && time.Now().Before(deadline) {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if after := percent(); after >= before || after < busyGarbage {
		t.Errorf("GOGC was %d, and is %d with %d MiB more alive", before, after, len(alive)>>20)
	}
	runtime.KeepAlive(alive)
	stop()
	if got := percent(); got != 77 {
		t.Errorf("afterwards GOGC is %d, it was 77", got)
	}
	runtime.GC()
	if got := percent(); got != 77 {
		t.Errorf("after another collection GOGC is %d", got)
	}
	t.Setenv("GOGC", "300")
	MakeRoom()()
	if got := percent(); got != 77 {
		t.Errorf("GOGC was set by the user, and is now %d", got)
	}
}

func TestRoomForGarbage_TidiesUpAfterABurst(t *testing.T) {
	former := debug.SetGCPercent(-1) // no other collections
	defer debug.SetGCPercent(former)
	g := &pacer{former: -1, ended: make(chan struct{})}
	defer g.stop()
	runtime.GC()
	before := liveHeap()
	for range 100 {
		sink = make([]byte, 1<<20)
	}
	sink = nil
	g.wg.Go(func() { g.collectPeriodically(time.Millisecond) })
	for deadline := time.Now().Add(90 * time.Second); heapInUse() > before+worthCollecting(before); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d MiB in use, %d MiB alive", heapInUse()>>20, liveHeap()>>20)
		}
	}
}

var sink []byte
