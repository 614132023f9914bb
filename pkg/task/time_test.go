package task

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDuration_IsSpeltShortAndReadBack(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1: "1ns", time.Second: "1s", 10 * time.Second: "10s", time.Minute: "1m", 10 * time.Minute: "10m", 90 * time.Second: "1m30s",
		time.Hour: "1h", 20 * time.Hour: "20h", time.Hour + time.Second: "1h0m1s", 70 * time.Minute: "1h10m", 1500 * time.Millisecond: "1.5s",
		time.Minute + 500*time.Millisecond: "1m0.5s", -time.Minute: "-1m", -time.Hour: "-1h", -time.Second: "-1s", -90 * time.Second: "-1m30s",
		100 * time.Hour: "100h", 1001 * time.Microsecond: "1.001ms",
	} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}

	rapid.Check(t, func(t *rapid.T) {
		want := Duration(rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64}),
			rapid.Custom(func(t *rapid.T) int64 { return int64(time.Second) * rapid.Int64Range(-1e6, 1e6).Draw(t, "s") })).Draw(t, "d"))

		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}

		var got Duration
		if err := json.Unmarshal(b, &got); err != nil || got != want || got.Std() != time.Duration(want) {
			t.Fatalf("%d became %d as %s: %v", want, got, b, err)
		}
	})
}

func TestParseDuration_AcceptsWeeksAndDays(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"2d": 48 * time.Hour, "1w": 168 * time.Hour, "1w2d": 216 * time.Hour, "2d12h": 60 * time.Hour, "2d 4h": 52 * time.Hour, "1h 30m": 90 * time.Minute, "1w 2d 3h": 219 * time.Hour, "1d1.5h": 25*time.Hour + 30*time.Minute,
		"0d": 0, "1w90s": 168*time.Hour + 90*time.Second, "106751d23h47m16.854775807s": math.MaxInt64,
	} {
		if got, err := ParseDuration("timeout", text); err != nil || got.Std() != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}

	for _, text := range []string{
		"d", "w", "-1d", "+1d", "1d-2h", "1d+2h", "1d2", "1d  2h", " 1d", "1h -30m", "30m 1d", "1 d", "1.5d", "2d1w", "1dd", "106752d", "106751d23h47m16.854775808s", "99999w", "999999w999999d", "1d99999999h",
	} {
		if got, err := ParseDuration("timeout", text); err == nil {
			t.Errorf("%s is %s", text, got)
		}
	}
}

func TestTime_IsUTCInMilliseconds(t *testing.T) {
	at := time.Date(2026, 11, 20, 23, 5, 0, 7_999_999, time.FixedZone("", 3600))
	b, err := json.Marshal(Time{at}) // not with At: the method of the embedded time must not be used
	if want := `"2026-11-20T22:05:00.007Z"`; err != nil || string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}

	if text, err := (Time{at}).MarshalText(); err != nil || string(text) != "2026-11-20T22:05:00.007Z" {
		t.Errorf("as text %s, %v", text, err)
	}

	if !At(time.Time{}).IsZero() {
		t.Error("no time became one")
	}

	for _, ns := range []int{-1, -999_999, 1, 999_999} { // towards the past, also before 1970
		if got := At(time.Unix(-1, int64(ns))); got.After(time.Unix(-1, int64(ns))) || got.Sub(time.Unix(-1, int64(ns))) < -time.Millisecond {
			t.Errorf("%d ns became %s", ns, got)
		}
	}
}

func TestTime_ReadBackIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low, high := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)
		want := At(time.Unix(rapid.Int64Range(low.Unix(), high.Unix()).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")))

		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}

		var got Time
		if err := json.Unmarshal(b, &got); err != nil || got != want {
			t.Fatalf("%v became %v as %s: %v", want, got, b, err)
		}
	})

	var zero Time
	b, _ := json.Marshal(struct {
		A Time `json:"a"`
		B Time `json:"b,omitzero"`
	}{})
	if err := json.Unmarshal([]byte(`"0001-01-01T00:00:00.000Z"`), &zero); err != nil || !zero.IsZero() || string(b) != `{"a":"0001-01-01T00:00:00.000Z"}` {
		t.Errorf("no time: %s, %v, %v", b, zero, err)
	}
}

func TestTime_ReadsRFC3339AndNothingElse(t *testing.T) {
	for text, want := range map[string]string{
		"2026-12-24T18:00:00Z": "2026-12-24T18:00:00.000Z", "2026-12-24T18:00:00+01:00": "2026-12-24T17:00:00.000Z",
		"2026-12-24T18:00:00.1239Z": "2026-12-24T18:00:00.123Z", "2028-02-29T00:00:00Z": "2028-02-29T00:00:00.000Z",
	} {
		var got Time
		if err := got.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if b, _ := got.MarshalText(); string(b) != want {
			t.Errorf("%s became %s, want %s", text, b, want)
		}
	}

	for _, text := range []string{
		`""`, `"now"`, `"2026-12-24"`, `"2026-12-24T18:00Z"`, `"2026-12-24T18:00:00"`, `"2026-12-24 18:00:00Z"`, `"2026-12-24t18:00:00z"`,
		`"2026-12-24T8:00:00Z"`, `"2026-12-24T18:00:00,5Z"`, `"2026-12-24T18:00:00+25:00"`, `"2026-02-29T00:00:00Z"`, `"2026-12-24T24:00:00Z"`,
		`"2026-12-24T18:00:60Z"`, `"12026-12-24T18:00:00Z"`, `1766599200`, `{}`, `true`,
	} {
		got := At(time.UnixMilli(1))
		err := json.Unmarshal([]byte(text), &got)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeBadTime {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}

	kept := At(time.UnixMilli(1))
	if err := json.Unmarshal([]byte("null"), &kept); err != nil || kept != At(time.UnixMilli(1)) {
		t.Errorf("null: %v, %v", kept, err)
	}
}

// The hand-written functions agree with package time, in both directions.
func TestTime_IsAsPackageTimeHasIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low, high := time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(10005, 12, 31, 23, 59, 59, 0, time.UTC)
		at := time.Unix(rapid.Int64Range(low.Unix(), high.Unix()).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		if got, _ := (Time{at}).AppendText(nil); string(got) != at.UTC().Format(timeLayout) {
			t.Fatalf("%s, want %s", got, at.UTC().Format(timeLayout))
		}

		if got, want := RunID(at, "abcdefgh"), at.UTC().Format(idTime)+"-abcd"; got != want {
			t.Fatalf("run %s, want %s", got, want)
		}
	})

	rapid.Check(t, func(t *rapid.T) { // texts that are almost a time
		text := []byte("2026-02-28T23:59:59.999Z")
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] = rapid.SampledFrom([]byte("0123456789-:.TZ+ ")).Draw(t, "byte")
		}

		got, ok := parseOwn(text)
		want, err := time.Parse(timeLayout, string(text))
		// Package time also reads texts that it would not write, such as ".+99".
		if written := err == nil && want.Format(timeLayout) == string(text); ok != written || ok && !got.Equal(want) {
			t.Fatalf("%s: %v, %t, want %v, %v", text, got, ok, want, err)
		}
	})
}

func TestDuration_Approximate_SaysTheTwoLargestUnits(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0ms", 12 * time.Millisecond: "12ms", 999*time.Millisecond + 999: "999ms", time.Second: "1s", 59*time.Second + 900*time.Millisecond: "59s",
		time.Minute: "1m", 61 * time.Second: "1m 1s", time.Hour: "1h", 3*time.Hour + 18*time.Minute + 59*time.Second: "3h 18m",
		24 * time.Hour: "1d", 57 * time.Hour: "2d 9h", 1000 * time.Hour: "41d 16h", 9000 * time.Hour: "375d", -90 * time.Second: "-1m 30s",
	} {
		if got := Duration(in).Approximate(); got != want {
			t.Errorf("%s: Approximate() = %q, want %q", in, got, want)
		}
	}
}
