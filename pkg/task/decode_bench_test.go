package task

import (
	"encoding/json"
	"testing"
)

// BenchmarkDecodeSpec measures how a task is decoded that a client has sent with all fields, and one in which a user wrote
// few.
func BenchmarkDecodeSpec(b *testing.B) {
	complete := Defaults()
	complete.Name, complete.Schedule, complete.Action = "backup", Schedules{"@every 24h"}, Action{Noop: &Noop{}}

	all, err := json.Marshal(complete)
	if err != nil {
		b.Fatal(err)
	}

	for name, body := range map[string][]byte{"all fields": all, "few fields": []byte(doc(process(`"command": ["backup", "--all"]`)))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeSpec(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
