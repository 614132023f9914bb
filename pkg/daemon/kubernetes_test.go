package daemon_test

import (
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// kubernetesManifest contains what the agents get from deploy/kubernetes/carillon.yaml. The module in deploy/helm tests the rest of it.
type kubernetesManifest struct {
	settings  string
	variables map[string]string
	mounts    map[string]string // directories, by the name of their Secret
}

func readKubernetesManifest(t *testing.T) (m kubernetesManifest) {
	t.Helper()
	b, err := os.ReadFile("../../deploy/kubernetes/carillon.yaml")
	if err != nil {
		t.Fatal(err)
	}

	m.variables, m.mounts = map[string]string{}, map[string]string{}
	for _, doc := range strings.Split(string(b), "\n---\n") {
		var object struct {
			Kind string
			Data map[string]string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Env          []struct{ Name, Value string }
							VolumeMounts []struct{ Name, MountPath string }
						}
						Volumes []struct {
							Name   string
							Secret struct{ SecretName string }
						}
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}

		switch pod := object.Spec.Template.Spec; object.Kind {
		case "ConfigMap":
			m.settings = object.Data["agent.yaml"]
		case "StatefulSet":
			for _, v := range pod.Containers[0].Env {
				m.variables[v.Name] = v.Value
			}
			for _, v := range pod.Volumes {
				for _, mount := range pod.Containers[0].VolumeMounts {
					if v.Name == mount.Name && v.Secret.SecretName != "" {
						m.mounts[v.Secret.SecretName] = mount.MountPath
					}
				}
			}
		}
	}

	return m
}

var (
	secretCommand = regexp.MustCompile(`(?m)^ *kubectl .*create secret generic (\S+) (.*)$`)
	fromFile      = regexp.MustCompile(`--from-file=(\S+)=(\S+)`)
)

// Agents accept the settings and variables of the manifests, with the Secrets that the commands in docs/how-to/kubernetes.md create.
func TestKubernetes_AgentsAcceptTheSettingsOfTheManifests(t *testing.T) {
	doc, err := os.ReadFile("../../docs/how-to/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	m := readKubernetesManifest(t)

	dir := t.TempDir()
	for line := range strings.Lines(string(doc)) {
		if words := strings.Fields(strings.ReplaceAll(line, "'", "")); len(words) > 2 && words[0] == "carillon" && words[1] == "cert" {
			for i, w := range words[:len(words)-1] {
				if w == "--dir" {
					words[i+1] = filepath.Join(dir, words[i+1])
				}
			}
			runCert(t, words[2:]...)
		}
	}

	// The files of each Secret, where its volume has them.
	settings := m.settings
	for _, c := range secretCommand.FindAllStringSubmatch(string(doc), -1) {
		volume := filepath.Join(dir, c[1])
		if err := os.Mkdir(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range fromFile.FindAllStringSubmatch(c[2], -1) {
			if err := os.Link(filepath.Join(dir, file[2]), filepath.Join(volume, file[1])); err != nil {
				t.Fatal(err)
			}
		}
		settings = strings.ReplaceAll(settings, m.mounts[c[1]]+"/", volume+"/")
	}
	settings = strings.ReplaceAll(settings, "/var/lib/carillon/", dir+"/")
	if strings.Contains(settings, "/etc/carillon") {
		t.Fatalf("no Secret for a file in\n%s", settings)
	}

	var s struct {
		InitialCluster map[string]string `json:"initial_cluster"`
		TLSCert        string            `json:"tls_cert"`
		PeerCert       string            `json:"etcd_peer_cert"`
	}
	if err := yaml.Unmarshal([]byte(settings), &s); err != nil || len(s.InitialCluster) != 3 {
		t.Fatalf("%v in\n%s", err, settings)
	}
	file := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}

	for pod, peer := range s.InitialCluster {
		for name, value := range m.variables {
			t.Setenv(name, strings.ReplaceAll(value, "$(CARILLON_NAME)", pod))
		}
		t.Setenv("CARILLON_NAME", pod)
		if code, out, errs := checkConfig(t, "--config", file); code != 0 || errs != "" || !regexp.MustCompile(`(?m)^name +`+pod+` +CARILLON_NAME$`).MatchString(out) {
			t.Errorf("%s: exit %d: %s%s", pod, code, out, errs)
		}

		checkHost(t, s.PeerCert, peer)
		checkHost(t, s.TLSCert, os.Getenv("CARILLON_ADVERTISE"))
		checkHost(t, s.TLSCert, os.Getenv("CARILLON_SERVER"))
	}
}

// checkHost checks that a certificate is valid for the host of a URL.
func checkHost(t *testing.T, file, at string) {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil || u.Hostname() == "" {
		t.Fatal(at, err)
	}

	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err == nil {
		err = cert.VerifyHostname(u.Hostname())
	}
	if err != nil {
		t.Errorf("%s: %v", file, err)
	}
}
