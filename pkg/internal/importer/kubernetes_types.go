package importer

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// The types below are the fields of a CronJob of the API group batch that the import knows. Each of them changes the
// task or adds a note. rest holds all other fields, for notes.

// kubeText is a text that may be written as a number or a boolean.
type kubeText string

// UnmarshalJSON accepts any scalar.
func (t *kubeText) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*t = kubeText(s)
		return nil
	}
	if len(b) > 0 && (b[0] == '{' || b[0] == '[') {
		return &json.UnmarshalTypeError{Value: map[byte]string{'{': "object", '[': "array"}[b[0]], Type: reflect.TypeFor[string]()}
	}

	*t = kubeText(b)

	return nil
}

type cronJob struct {
	Metadata struct {
		Name      string              `json:"name"`
		Namespace string              `json:"namespace"`
		Labels    map[string]kubeText `json:"labels"`
	} `json:"metadata"`
	Spec cronJobSpec `json:"spec"`
}

type cronJobSpec struct {
	Schedule                   string `json:"schedule"`
	TimeZone                   string `json:"timeZone"`
	Suspend                    bool   `json:"suspend"`
	ConcurrencyPolicy          string `json:"concurrencyPolicy"`
	StartingDeadlineSeconds    *int64 `json:"startingDeadlineSeconds"`
	SuccessfulJobsHistoryLimit *int64 `json:"successfulJobsHistoryLimit"`
	FailedJobsHistoryLimit     *int64 `json:"failedJobsHistoryLimit"`
	JobTemplate                struct {
		Spec jobSpec `json:"spec"`
	} `json:"jobTemplate"`
	rest kubeFields
}

type jobSpec struct {
	BackoffLimit          *int64 `json:"backoffLimit"`
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds"`
	Parallelism           *int64 `json:"parallelism"`
	Completions           *int64 `json:"completions"`
	CompletionMode        string `json:"completionMode"`
	Template              struct {
		Spec podSpec `json:"spec"`
	} `json:"template"`
	rest kubeFields
}

type podSpec struct {
	Containers                    []container         `json:"containers"`
	InitContainers                []container         `json:"initContainers"`
	NodeSelector                  map[string]kubeText `json:"nodeSelector"`
	NodeName                      string              `json:"nodeName"`
	Affinity                      *affinity           `json:"affinity"`
	TerminationGracePeriodSeconds *int64              `json:"terminationGracePeriodSeconds"`
	ActiveDeadlineSeconds         *int64              `json:"activeDeadlineSeconds"`
	SecurityContext               securityContext     `json:"securityContext"`
	rest                          kubeFields
}

type affinity struct {
	NodeAffinity struct {
		Required struct {
			Terms []struct {
				MatchExpressions []struct {
					Key      string     `json:"key"`
					Operator string     `json:"operator"`
					Values   []kubeText `json:"values"`
				} `json:"matchExpressions"`
				MatchFields []any `json:"matchFields"`
			} `json:"nodeSelectorTerms"`
		} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
		Preferred []any `json:"preferredDuringSchedulingIgnoredDuringExecution"`
	} `json:"nodeAffinity"`
	rest kubeFields
}

type container struct {
	Name            string          `json:"name"`
	Image           string          `json:"image"`
	Command         []kubeText      `json:"command"`
	Args            []kubeText      `json:"args"`
	Env             []envVar        `json:"env"`
	EnvFrom         []envSource     `json:"envFrom"`
	WorkingDir      string          `json:"workingDir"`
	Resources       resources       `json:"resources"`
	SecurityContext securityContext `json:"securityContext"`
	rest            kubeFields
}

type envVar struct {
	Name      string   `json:"name"`
	Value     kubeText `json:"value"`
	ValueFrom *struct {
		SecretKeyRef *struct {
			Name     string `json:"name"`
			Key      string `json:"key"`
			Optional bool   `json:"optional"`
		} `json:"secretKeyRef"`
		rest kubeFields
	} `json:"valueFrom"`
}

type envSource struct {
	Prefix    string `json:"prefix"`
	SecretRef *struct {
		Name     string `json:"name"`
		Optional bool   `json:"optional"`
	} `json:"secretRef"`
	ConfigMapRef *struct {
		Name string `json:"name"`
	} `json:"configMapRef"`
}

type resources struct {
	Limits   map[string]kubeText `json:"limits"`
	Requests map[string]kubeText `json:"requests"`
	rest     kubeFields
}

type securityContext struct {
	RunAsUser                *int64  `json:"runAsUser"`
	RunAsGroup               *int64  `json:"runAsGroup"`
	SupplementalGroups       []int64 `json:"supplementalGroups"`
	RunAsNonRoot             *bool   `json:"runAsNonRoot"`
	AllowPrivilegeEscalation *bool   `json:"allowPrivilegeEscalation"`
	rest                     kubeFields
}

// kubeFields are the fields of an object that its type does not have.
type kubeFields map[string]any

// decodeWithRest decodes an object into the struct behind v, and returns the other fields that have a value.
func decodeWithRest(b []byte, v any) (kubeFields, error) {
	if err := json.Unmarshal(b, v); err != nil {
		return nil, err
	}

	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}

	for t, i := reflect.TypeOf(v).Elem(), 0; i < t.NumField(); i++ {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		delete(all, name)
	}
	for name, value := range all {
		if text := fmt.Sprint(value); value == nil || text == "map[]" || text == "[]" || text == "" {
			delete(all, name)
		}
	}

	return all, nil
}

// UnmarshalJSON also keeps the other fields.
func (c *cronJobSpec) UnmarshalJSON(b []byte) (err error) {
	type plain cronJobSpec
	c.rest, err = decodeWithRest(b, (*plain)(c))
	return err
}

// UnmarshalJSON also keeps the other fields.
func (j *jobSpec) UnmarshalJSON(b []byte) (err error) {
	type plain jobSpec
	j.rest, err = decodeWithRest(b, (*plain)(j))
	return err
}

// UnmarshalJSON also keeps the other fields.
func (p *podSpec) UnmarshalJSON(b []byte) (err error) {
	type plain podSpec
	p.rest, err = decodeWithRest(b, (*plain)(p))
	return err
}

// UnmarshalJSON also keeps the other fields.
func (a *affinity) UnmarshalJSON(b []byte) (err error) {
	type plain affinity
	a.rest, err = decodeWithRest(b, (*plain)(a))
	return err
}

// UnmarshalJSON also keeps the other fields.
func (c *container) UnmarshalJSON(b []byte) (err error) {
	type plain container
	c.rest, err = decodeWithRest(b, (*plain)(c))
	return err
}

// UnmarshalJSON also keeps the other fields.
func (r *resources) UnmarshalJSON(b []byte) (err error) {
	type plain resources
	r.rest, err = decodeWithRest(b, (*plain)(r))
	return err
}

// UnmarshalJSON also keeps the other fields.
func (s *securityContext) UnmarshalJSON(b []byte) (err error) {
	type plain securityContext
	s.rest, err = decodeWithRest(b, (*plain)(s))
	return err
}
