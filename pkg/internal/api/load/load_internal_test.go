package load

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestSumSteps(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		minutes int
		want    string
	}{{1, "[1 0 2.33 0]"}, {2, "[1 2.33]"}, {4, "[3.33]"}} {
		if got := fmt.Sprint(sumSteps([]float64{1, 0, 2.333333, 0}, c.minutes)); got != c.want {
			t.Errorf("steps of %d: %s, want %s", c.minutes, got, c.want)
		}
	}
}

func TestAdvise_NamesEachCrowdOnce(t *testing.T) {
	t.Parallel()

	maker := func(schedule string, tasks int, jitter time.Duration) client.LoadMaker {
		return client.LoadMaker{Schedule: schedule, Timezone: "UTC", Tasks: tasks, Jitter: task.Duration(jitter)}
	}
	berlin := maker("0 12 * * *", 5000, 0)
	berlin.Timezone = "Europe/Berlin"
	peaks := []client.LoadPeak{
		{Runs: 1300, Makers: []client.LoadMaker{maker("0 0 * * *", 1200, 0), maker("@at", 80, 0), maker("@hourly", 30, time.Minute), maker("0 * * * *", 19, 0)}},
		{Runs: 900, Makers: []client.LoadMaker{maker("0 0 * * *", 1200, 0), berlin}},
		{Runs: 29, Makers: []client.LoadMaker{maker("5 5 * * *", 29, 0)}}, // less than three times the average
	}

	got := ""
	for _, a := range advise(peaks, 10) {
		got += a.Text + "\n"
	}
	want := "spread with jitter: 5,000 tasks with the schedule 0 12 * * * in Europe/Berlin\n" +
		"spread with jitter: 1,200 tasks with the schedule 0 0 * * *\n" +
		"spread the times of 80 tasks with @at\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
