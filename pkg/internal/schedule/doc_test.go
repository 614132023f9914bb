package schedule_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// rows returns the rows of the table in docs/schedules.md that has this header.
func rows(t *testing.T, header string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/schedules.md")
	if err != nil {
		t.Fatal(err)
	}

	_, table, found := strings.Cut(string(text), header+"\n")
	if !found {
		t.Fatalf("no table %q", header)
	}

	var list [][]string
	for _, line := range strings.Split(table, "\n")[1:] {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			break
		}

		cells = cells[1 : len(cells)-1]
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}

		list = append(list, cells)
	}

	if len(list) == 0 {
		t.Fatalf("the table %q is empty", header)
	}

	return list
}

// quoted returns the texts between backticks.
func quoted(text string) []string {
	var list []string
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			list = append(list, part)
		}
	}

	return list
}

// A clockChange lists the ticks of a schedule that follow a local time. Schedules are separated by semicolons.
type clockChange struct{ zone, schedule, gap, fold, after, ticks string }

func (c clockChange) check(t *testing.T) {
	t.Helper()
	location, err := schedule.Location(c.zone)
	if err != nil {
		t.Fatal(err)
	}

	after, err := time.ParseInLocation("2006-01-02 15:04", c.after, location)
	if err != nil {
		t.Fatal(err)
	}

	timing := task.Timing{Schedule: strings.Split(c.schedule, ";"), Timezone: c.zone, DST: task.DST{Gap: c.gap, Fold: c.fold}}
	list, err := schedule.Upcoming(timing, after, after, strings.Count(c.ticks, ",")+1)
	if err != nil {
		t.Fatal(err)
	}

	var ticks []string
	for _, o := range list {
		ticks = append(ticks, o.Local.Format("02 15:04 -07:00"))
	}

	if got := strings.Join(ticks, ", "); got != c.ticks {
		t.Errorf("%v:\n got %s", c, got)
	}
}

func TestDocs_TellTheTruthAboutClockChanges(t *testing.T) {
	for _, row := range rows(t, "| zone | schedule | gap | fold | after | ticks |") {
		clockChange{row[0], strings.Join(quoted(row[1]), ";"), row[2], row[3], row[4], row[5]}.check(t)
	}
}

// More clock changes than the documentation lists.
func TestUpcoming_AtClockChanges(t *testing.T) {
	for _, c := range []clockChange{
		{"Europe/Berlin", "30 1-3 * * *", "run-after", "first", "2026-03-28 12:00", "29 01:30 +01:00, 29 03:00 +02:00, 29 03:30 +02:00"},
		{"Europe/Berlin", "0 3 * * *", "run-after", "first", "2026-03-28 12:00", "29 03:00 +02:00, 30 03:00 +02:00"},
		{"Europe/Berlin", "0 */2 * * *", "run-after", "first", "2026-03-28 23:00", "29 00:00 +01:00, 29 04:00 +02:00, 29 06:00 +02:00"},
		{"Europe/Berlin", "30 0-23 * * *", "run-after", "first", "2026-10-25 01:45", "25 02:30 +02:00, 25 03:30 +01:00"},
		{"Asia/Beirut", "@daily", "run-after", "first", "2026-03-28 12:00", "29 01:00 +03:00, 30 00:00 +03:00"},
		{"Asia/Beirut", "@daily", "skip", "first", "2026-03-28 12:00", "30 00:00 +03:00, 31 00:00 +03:00"},
		{"Australia/Lord_Howe", "15 2 * * *", "run-after", "first", "2026-10-03 12:00", "04 02:30 +11:00, 05 02:15 +11:00"},
	} {
		c.check(t)
	}
}

func TestDocs_NameOnlyWhatIsAccepted(t *testing.T) {
	for _, header := range []string{"| expression | ticks |", "| expression | ticks at midnight |"} {
		for _, row := range rows(t, header) {
			for _, expr := range quoted(row[0]) {
				if err := schedule.Check(task.Timing{Schedule: []string{expr}, Timezone: "", DST: noDST}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// The nicknames stand for the expressions in the table.
func TestDocs_SpellOutNicknames(t *testing.T) {
	for _, row := range rows(t, "| expression | ticks |") {
		same := quoted(row[1])
		if len(same) == 0 {
			continue
		}

		for _, name := range quoted(row[0]) {
			a, b := parse(t, "Asia/Beirut", noDST, name), parse(t, "Asia/Beirut", noDST, same[0])

			for now := anchor; now.Year() < 2028; {
				x, _ := a.Next(now)
				if y, _ := b.Next(now); !x.Equal(y) {
					t.Fatalf("%s after %v: %v, not %v", name, now, x, y)
				}
				now = x
			}
		}
	}
}

func TestDocs_NameWhatIsRefused(t *testing.T) {
	for _, row := range rows(t, "| written | instead |") {
		for _, text := range quoted(row[0]) {
			refused(t, strings.TrimSuffix(text, "…"))
		}
	}
}

func TestCheck_RefusesFormsOfOtherSchedulers(t *testing.T) {
	for _, text := range []string{
		",", "1,,2", "*-5", "5-1", "*/0", "*/75", "60 * * * *", "0 24 * * *", "0 0 0 * *", "0 0 30 2 *", "0 0 ?,1 * *", "0 0 ?/2 * *", "0 0 L/2 * *",
		"0 0 1-5W * *", "0 0 W * *", "0 0 5#3 * *", "0 0 * L *", "0 0 * * 15W", "0 0 * * 5#6", "H(5) * * * *", "H5 * * * *", "0 0 H(20-31) * *",
		"@Daily", "@every -1h", "@every 50ms", "@every 1h after", "@every 1h after success", "@in -1m", "@at",
	} {
		refused(t, text)
	}
}

// refused fails the test if a text is accepted as a schedule or as a time zone. A text without a space is a field.
func refused(t *testing.T, text string) {
	t.Helper()
	if !strings.Contains(text, " ") && !strings.HasPrefix(text, "@") && !strings.Contains(text, "TZ=") {
		text += " * * * *"
	}

	expr, zone := []string{text}, strings.Fields(text)[0]
	if schedule.Check(task.Timing{Schedule: expr, Timezone: "", DST: noDST}) == nil {
		t.Errorf("%q is accepted", text)
	}

	if _, err := schedule.Location(zone); err == nil {
		t.Errorf("the zone %q is accepted", zone)
	}
}
