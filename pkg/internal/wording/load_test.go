package wording_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

func TestHotSeconds(t *testing.T) {
	t.Parallel()

	even := client.LoadPeak{Runs: 60}
	for i := range 5 {
		even.Seconds = append(even.Seconds, client.LoadSecond{Second: i, Runs: 1})
	}
	for _, c := range []struct {
		peak client.LoadPeak
		want string
	}{
		{client.LoadPeak{Runs: 1240, Seconds: []client.LoadSecond{{Second: 0, Runs: 1200}, {Second: 30, Runs: 40}}}, ":00 1,200"},
		{client.LoadPeak{Runs: 240, Seconds: []client.LoadSecond{{Second: 0, Runs: 200}, {Second: 30, Runs: 40}}}, ":00 200, :30 40"},
		{even, ""},
		{client.LoadPeak{}, ""},
	} {
		if got := wording.HotSeconds(c.peak); got != c.want {
			t.Errorf("%+v: %q, want %q", c.peak, got, c.want)
		}
	}
}
