package task

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

func TestEnvFrom_BadInput(t *testing.T) {
	t.Parallel()

	for field, f := range map[string]EnvFrom{
		"env_from[0]":                 {},
		"env_from[0].file":            {File: "etc/app.env"},
		"env_from[0].optional":        {Secret: "db", Optional: true},
		"env_from[0].secret":          {Secret: "Not/A/Name"},
		"env_from[0].prefix":          {Secret: "db", Prefix: "1_"},
		"env_from[0].keys ":           {Secret: "db", Keys: map[string]string{}},
		"env_from[0].keys":            {Secret: "db", Keys: map[string]string{"a b": "A"}},
		"env_from[0].keys.password":   {Secret: "db", Keys: map[string]string{"password": "PG PASSWORD"}},
		"env_from[0].keys.b":          {Secret: "db", Keys: map[string]string{"a": "X", "b": "X"}},
		"env_from[0].keys.carillon":   {Secret: "db", Keys: map[string]string{"carillon": "CARILLON_TASK"}},
		"env_from[0].keys.underscore": {Secret: "db", Prefix: "CARILLON", Keys: map[string]string{"underscore": "_TASK"}},
	} {
		a := Action{Process: &Process{Command: []string{"true"}, EnvFrom: []EnvFrom{f}}}
		var e *Error
		if err := a.Validate(); !errors.As(err, &e) || e.Field != "action.process."+strings.TrimSpace(field) {
			t.Errorf("%+v: %v; want %s", f, err, field)
		}
	}

	both := Action{Process: &Process{Command: []string{"true"}, EnvFrom: []EnvFrom{{File: "/x", Secret: "db"}}}}
	many := Action{Process: &Process{Command: []string{"true"}, EnvFrom: make([]EnvFrom, MaxEnvFrom+1)}}
	for want, a := range map[string]Action{"either file or secret": both, "at most 32": many} {
		if err := a.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestEnvFrom_Take(t *testing.T) {
	t.Parallel()
	values := map[string]string{"user": "app", "password": "hunter2"}

	for want, f := range map[string]EnvFrom{
		"user=app password=hunter2":       {Secret: "db"},
		"DB_user=app DB_password=hunter2": {Secret: "db", Prefix: "DB_"},
		"PGPASSWORD=hunter2":              {Secret: "db", Keys: map[string]string{"password": "PGPASSWORD"}},
		"PG_PASSWORD=hunter2":             {Secret: "db", Prefix: "PG_", Keys: map[string]string{"password": "PASSWORD"}},
	} {
		wanted := map[string]string{}
		for pair := range strings.FieldsSeq(want) {
			k, v, _ := strings.Cut(pair, "=")
			wanted[k] = v
		}

		if got, err := f.Take(values); err != nil || !maps.Equal(got, wanted) {
			t.Errorf("%+v: %v, %v", f, got, err)
		}
	}

	if _, err := (EnvFrom{Secret: "db", Keys: map[string]string{"none": "X"}}).Take(values); err == nil || err.Error() != `secret db does not contain "none"` {
		t.Error(err)
	}
}

func TestCheckSecret(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range MaxEnv + 1 {
		many["A"+strings.Repeat("x", i%100)+strings.Repeat("y", i/100)] = ""
	}

	for want, values := range map[string]map[string]string{
		"":                       {"A": "hunter2\n", "b_1": ""},
		"is empty":               {},
		"at most 256":            many,
		"is not a variable name": {"hunter-2": "hunter2"},
		"contains a NUL byte":    {"A": "hunter2\x00"},
		"is not UTF-8":           {"A": "hunter2\xff"},
		"at most 65536":          {"A": strings.Repeat("hunter2", 10_000)},
		"set by Carillon":        {"CARILLON_A": "hunter2"},
	} {
		err := CheckSecret("values", values)
		if (want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
