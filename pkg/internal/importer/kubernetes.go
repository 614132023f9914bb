package importer

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// Kubernetes reads the CronJobs of a YAML or JSON file, which may contain several documents, and lists of objects.
// It skips objects of other kinds, and counts them in a note. It refuses a file that cannot be parsed as a whole.
//
// A container becomes a process of the node. The job's notes name its image, its volumes and everything else that
// makes it a container. It cannot convert a container without a command, which is then in the image, or a pod with
// several containers. With Options.Shadow it can, because shadow tasks start nothing.
func Kubernetes(file, text string, o Options) Result {
	var r Result
	values, err := manifest.Values(file, []byte(text))
	if err != nil {
		at, why := locateError(file, err)
		if strings.Contains(text, "{{") {
			why += "; if this is a Helm chart, render it first with helm template"
		}

		r.addRefusal(at, "%s", why)

		return r
	}

	others := map[string]int{}

	for _, v := range values {
		r.addObject(file, v, o, others)
	}

	for _, kind := range slices.Sorted(maps.Keys(others)) {
		r.addNote(Place{File: file}, "skipped %d of kind %s: only CronJobs have a schedule", others[kind], kind)
	}

	return r
}

// locateError returns the place and the text of an error of manifest.Values.
func locateError(file string, err error) (at Place, why string) {
	var fault *manifest.Error
	if errors.As(err, &fault) {
		return Place{file, fault.Line}, fault.Err.Error()
	}
	return Place{File: file}, err.Error()
}

// typeErrorText returns the text of an error of manifest.Value.Decode. If a value has the wrong type, it names the field.
func typeErrorText(err error) string {
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) && typed.Field != "" {
		return typed.Field + ": a " + typed.Value + " is not allowed here"
	}
	return err.Error()
}

// head is the part of an object that identifies it.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

// addObject converts an object, or the objects of a list.
func (r *Result) addObject(file string, v manifest.Value, o Options, others map[string]int) {
	at := Place{file, v.Line()}
	var h head
	if err := v.Decode(&h); err != nil || h.Kind == "" {
		r.addRefusal(at, "is not a Kubernetes object: it has no kind")
		return
	}

	switch {
	case strings.HasSuffix(h.Kind, "List"):
		for _, item := range v.Items("items") {
			r.addObject(file, item, o, others)
		}
	case h.Kind == "CronJob" && strings.HasPrefix(h.APIVersion, "batch/"):
		var job cronJob
		if err := v.Decode(&job); err != nil {
			r.addRefusal(at, "%s: %s", quoteShort(h.Metadata.Name), typeErrorText(err))
			return
		}

		r.cronJob(at, job, o)
	default:
		others[h.Kind]++
	}
}
