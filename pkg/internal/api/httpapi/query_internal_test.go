package httpapi

import (
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

type innerQuery struct {
	Count int     `query:"count" minimum:"1" maximum:"9" default:"5" doc:"How many."`
	Page  *string `query:"page" doc:"A page."`
}

type labelText struct{ task.Selector }

func (l *labelText) UnmarshalText(text []byte) (err error) {
	l.Selector, err = task.ParseSelector(string(text))
	return err
}

type outerQuery struct {
	Name   string     `query:"name" doc:"A name."`
	From   int64      `query:"from" minimum:"0" doc:"A place."`
	At     task.Time  `query:"at" format:"date-time" doc:"A time."`
	Labels *labelText `query:"labels" doc:"Labels."`
	innerQuery
	Dry bool `query:"dry" default:"false" doc:"Nothing is written."`
}

func (q *outerQuery) Check(given url.Values) error {
	if q.Dry && given.Has("count") {
		return task.Invalid(task.CodeBadValue, "count", "not together with dry")
	}
	return nil
}

func TestQuery_DecodesWhatItsTagsDeclare(t *testing.T) {
	decode := func(text string) (got outerQuery, err error) {
		t.Helper()
		values, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}

		serve, err := Query(func(_ *Call, q outerQuery) (Answer, error) { got = q; return Answer{}, nil }).prepare(values)
		if err == nil {
			_, err = serve(nil)
		}

		return got, err
	}

	if got, err := decode(""); err != nil || !reflect.DeepEqual(got, outerQuery{innerQuery: innerQuery{Count: 5}}) {
		t.Errorf("without parameters: %+v, %v", got, err)
	}

	got, err := decode("name=x&from=7&at=2026-11-20T22:05:00Z&labels=team=data&count=9&page=&dry=false")
	if err != nil || got.Name != "x" || got.From != 7 || got.At.Unix() != time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC).Unix() || got.Labels == nil ||
		!got.Labels.Matches(map[string]string{"team": "data"}) || got.Count != 9 || got.Page == nil || *got.Page != "" || got.Dry {
		t.Errorf("with all of them: %+v, %v", got, err)
	}

	for text, want := range map[string]task.Error{
		"count=x":                 {Code: task.CodeBadValue, Field: "count", Message: `"x" is not a whole number`},
		"count=":                  {Code: task.CodeBadValue, Field: "count", Message: `"" is not a whole number`},
		"count=10":                {Code: task.CodeOutOfRange, Field: "count", Message: "10 is not between 1 and 9"},
		"from=-1":                 {Code: task.CodeOutOfRange, Field: "from", Message: "-1 is not between 0 and 9223372036854775807"},
		"dry=1":                   {Code: task.CodeBadValue, Field: "dry", Message: `"1" is neither true nor false`},
		"at=1999-11-20T22:05:00Z": {Code: task.CodeBadTime, Field: "at", Message: "\"1999-11-20T22:05:00Z\" is not in the years 2000 to 2100"},
		"dry=true&count=5":        {Code: task.CodeBadValue, Field: "count", Message: "not together with dry"},
	} {
		_, err := decode(text)
		if e, ok := err.(*task.Error); !ok || e.Code != want.Code || e.Field != want.Field || e.Message != want.Message {
			t.Errorf("%s: got %#v, want %+v", text, err, want)
		}
	}

	if _, err := decode("labels=a=b=c"); err == nil || err.(*task.Error).Field != "labels" {
		t.Errorf("a bad selector: %v", err)
	}
}
