package definition

import "testing"

func TestTiming_TellsHowOftenATaskTicks(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]uint8{
		`"schedule":"* * * * * *"`:                            60,
		`"schedule":"@every 500ms"`:                           60,
		`"schedule":"@every 9s"`:                              60,
		`"schedule":"@every 25s"`:                             24,
		`"schedule":"* * * * *"`:                              10,
		`"schedule":"* 9-17 * * 1-5"`:                         10,
		`"schedule":["* * * * *","30 * * * * *"]`:             20,
		`"schedule":"@hourly"`:                                1,
		`"schedule":"0 0 29 2 *"`:                             1,
		`"schedule":"@at 2026-03-01T12:00:00Z"`:               1,
		`"schedule":"@at 2020-03-01T12:00:00Z"`:               0,
		`"schedule":"@every 1s after completion"`:             0,
		`"schedule":"@manual"`:                                0,
		`"schedule":"* * * * *","end":"2020-01-01T00:00:00Z"`: 0,
	} {
		timing, err := NewTiming(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}

		if timing.Often != want {
			t.Errorf("%s: %d ticks, want %d", text, timing.Often, want)
		}
	}
}

func BenchmarkNewTiming(b *testing.B) {
	for name, text := range map[string]string{
		"daily": `"schedule":"17 3 * * *","timezone":"Europe/Berlin"`, "seconds": `"schedule":"* * * * * *"`,
		"minutes": `"schedule":"*/5 * * * *"`, "every": `"schedule":"@every 20s"`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := NewTiming(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
