// Package helm tests the chart with Helm's own library and the types of the Kubernetes API. It is a module of its own, so that
// Carillon does not depend on them: make deploy-test.
package helm

import (
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	podsecurityapi "k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the rendered manifests")

// The plain manifests are those of the default values.
const defaults = "../kubernetes/carillon.yaml"

// manifests are the rendered charts, and the values of each.
var manifests = map[string]string{
	defaults:                   "",
	"testdata/deployment.yaml": "testdata/deployment.values.yaml",
	"testdata/daemonset.yaml":  "testdata/daemonset.values.yaml",
}

// readValues reads a file of values; "" has none.
func readValues(t *testing.T, path string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if path == "" {
		return values
	}

	b, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(b, &values)
	}
	if err != nil {
		t.Fatal(err)
	}

	return values
}

// render returns the manifests of the chart as the release carillon in the namespace carillon, as helm template prints them.
func render(values map[string]any) (string, error) {
	c, err := loader.Load("carillon")
	if err != nil {
		return "", err
	}
	v, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "carillon", Namespace: "carillon", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, v)
	if err != nil {
		return "", err
	}

	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := strings.TrimSpace(files[name])
		if strings.HasSuffix(name, ".yaml") && text != "" {
			b.WriteString("---\n# Source: " + name + "\n" + text + "\n")
		}
	}

	return b.String(), nil
}

func TestChart_IsRenderedAsCommitted(t *testing.T) {
	for file, values := range manifests {
		got, err := render(readValues(t, values))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || string(want) != got {
			t.Errorf("%s is not what the chart renders (%v): run go test . -update", file, err)
		}
	}
}

func TestChart_HasNoFindingsOfLint(t *testing.T) {
	for file, values := range manifests {
		for _, m := range lint.RunAll("carillon", readValues(t, values), "carillon").Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", file, m)
			}
		}
	}
}

func TestChart_RefusesWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"image: ''":                            "minLength",
		"replicaCount: 3":                      "additional properties 'replicaCount' not allowed",
		"replicas: 2":                          "value must be one of 3, 5",
		"workload: CronJob":                    "value must be one of",
		"workload: Deployment":                 "etcd.endpoints is required for this workload",
		"etcd: {endpoints: ['etcd:2379']}":     "does not match pattern",
		"settings: {tls_client_auth: require}": "use optional",
		"settings: {drain_timeout: 10m}":       "use drainTimeoutSeconds",
		"workload: Deployment\netcd: {endpoints: ['http://e'], user: u}": "etcd.secret is required with etcd.user",
	} {
		v := map[string]any{}
		if err := yaml.Unmarshal([]byte(values), &v); err != nil {
			t.Fatal(err)
		}
		if _, err := render(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", values, err, want)
		}
	}
}

// objects are the objects of a manifest, by type.
type objects struct {
	meta     []metav1.ObjectMeta
	services []*corev1.Service
	config   *corev1.ConfigMap
	pod      *corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
	selects  map[string]*metav1.LabelSelector // what selects the pods, by kind
}

// decode decodes a manifest. Fields that the API does not know, duplicate fields and values of other types are errors.
func decode(t *testing.T, manifest string) (o objects) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

	o.selects = map[string]*metav1.LabelSelector{}
	for _, doc := range strings.Split(manifest, "\n---\n") {
		got, kind, err := decoder.Decode([]byte(doc), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}

		o.meta = append(o.meta, *got.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta))
		switch v := got.(type) {
		case *corev1.ConfigMap:
			o.config = v
		case *corev1.Service:
			o.services = append(o.services, v)
			o.selects[v.Name] = &metav1.LabelSelector{MatchLabels: v.Spec.Selector}
		case *appsv1.StatefulSet:
			o.pod, o.selects[kind.Kind], o.claims = &v.Spec.Template, v.Spec.Selector, v.Spec.VolumeClaimTemplates
		case *appsv1.Deployment:
			o.pod, o.selects[kind.Kind] = &v.Spec.Template, v.Spec.Selector
		case *appsv1.DaemonSet:
			o.pod, o.selects[kind.Kind] = &v.Spec.Template, v.Spec.Selector
		case *policyv1.PodDisruptionBudget:
			o.selects[kind.Kind] = v.Spec.Selector
		case *networkingv1.NetworkPolicy:
			o.selects[kind.Kind] = &v.Spec.PodSelector
		case *monitoring.ServiceMonitor:
		default:
			t.Fatalf("%s is not expected", kind)
		}
	}

	return o
}

func TestManifests_AreValidObjectsThatFitTogether(t *testing.T) {
	for file := range manifests {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		o := decode(t, strings.TrimPrefix(string(b), "---\n"))

		for _, m := range o.meta {
			for _, fault := range append(validation.IsDNS1123Label(m.Name), validation.IsDNS1123Label(m.Namespace)...) {
				t.Errorf("%s: %s/%s: %s", file, m.Namespace, m.Name, fault)
			}
			if faults := metav1validation.ValidateLabels(m.Labels, nil); len(faults) > 0 {
				t.Errorf("%s: %s: %v", file, m.Name, faults)
			}
		}

		for what, s := range o.selects {
			selector, err := metav1.LabelSelectorAsSelector(s)
			if err != nil || selector.Empty() || !selector.Matches(labels.Set(o.pod.Labels)) {
				t.Errorf("%s: %s does not select the pods: %v, %v", file, what, selector, err)
			}
		}

		checkPod(t, file, o)
	}
}

// checkPod checks that names within a pod exist, and that it is confined.
func checkPod(t *testing.T, file string, o objects) {
	t.Helper()
	c := o.pod.Spec.Containers[0]

	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	wanted := []string{c.LivenessProbe.HTTPGet.Port.String(), c.ReadinessProbe.HTTPGet.Port.String()}
	for _, s := range o.services {
		for _, p := range s.Spec.Ports {
			wanted = append(wanted, p.TargetPort.String())
		}
	}
	for _, name := range wanted {
		if !ports[name] {
			t.Errorf("%s: the pod has no port %s", file, name)
		}
	}

	volumes := map[string]bool{}
	for _, v := range o.pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range o.claims {
		volumes[v.Name] = true
	}
	var mounts []string
	for _, m := range c.VolumeMounts {
		mounts = append(mounts, m.MountPath)
		if !volumes[m.Name] {
			t.Errorf("%s: the pod has no volume %s", file, m.Name)
		}
		delete(volumes, m.Name)
	}
	for name := range volumes {
		t.Errorf("%s: volume %s is not mounted", file, name)
	}

	// Each file in the settings is in a volume.
	settings := map[string]any{}
	if err := yaml.Unmarshal([]byte(o.config.Data["agent.yaml"]), &settings); err != nil {
		t.Fatal(err)
	}
	for field, v := range settings {
		if path, ok := v.(string); ok && filepath.IsAbs(path) && !slices.Contains(mounts, filepath.Dir(path)) {
			t.Errorf("%s: %s: no volume contains %s", file, field, path)
		}
	}

	if !*c.SecurityContext.ReadOnlyRootFilesystem || *o.pod.Spec.AutomountServiceAccountToken || *o.pod.Spec.EnableServiceLinks {
		t.Errorf("%s: the pod is not confined: %v", file, c.SecurityContext)
	}
	standards, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := podsecurityapi.LevelVersion{Level: podsecurityapi.LevelRestricted, Version: podsecurityapi.LatestVersion()}
	for _, r := range standards.EvaluatePod(restricted, &o.pod.ObjectMeta, &o.pod.Spec) {
		if !r.Allowed {
			t.Errorf("%s: not within the Pod Security Standard restricted: %s: %s", file, r.ForbiddenReason, r.ForbiddenDetail)
		}
	}
}

// A pod without a stable name advertises the name that the DNS of the cluster gives its address.
func TestManifests_PodsWithoutStableNamesAdvertiseTheirAddress(t *testing.T) {
	text, err := render(readValues(t, "testdata/daemonset.values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	script := decode(t, strings.TrimPrefix(text, "---\n")).pod.Spec.Containers[0].Command[2]

	for ip, want := range map[string]string{
		"10.0.12.7": "https://10-0-12-7.carillon-peers.carillon.svc:7070",
		"fd00::7":   "https://fd00--7.carillon-peers.carillon.svc:7070",
	} {
		cmd := exec.Command("/bin/sh", "-c", strings.Replace(script, "exec /usr/bin/carillon", "echo", 1))
		cmd.Env = []string{"POD_IP=" + ip, "PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if words := strings.Fields(string(out)); err != nil || len(words) == 0 || words[len(words)-1] != want {
			t.Errorf("%s: %s, %v", ip, out, err)
		}
	}
}
