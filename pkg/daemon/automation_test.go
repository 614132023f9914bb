package daemon_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/carillonhq/carillon/pkg/cli"
)

// runCert runs carillon cert.
func runCert(t *testing.T, words ...string) {
	t.Helper()
	var out bytes.Buffer
	if code := cli.Main(t.Context(), append([]string{"cert"}, words...), cli.IO{In: strings.NewReader(""), Out: &out, Err: &out}); code != 0 {
		t.Fatalf("carillon cert %v: %s", words, &out)
	}
}

// acceptSettings checks that an agent accepts settings with the certificates of docs/how-to/tls.md for the node n1, in dir instead of /etc/carillon.
func acceptSettings(t *testing.T, what, settings, dir string) {
	t.Helper()
	settings = strings.NewReplacer("/etc/carillon/ca.pem", dir+"/ca.pem", "/etc/carillon/node.pem", dir+"/n1.pem", "/etc/carillon/node-key.pem", dir+"/n1-key.pem",
		"/etc/carillon/etcd.pem", dir+"/carillon.pem", "/etc/carillon/etcd-key.pem", dir+"/carillon-key.pem", "/run/carillon/", dir+"/").Replace(settings)
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}

	if code, out, errs := checkConfig(t, "--config", file, "--data-dir", filepath.Join(dir, "data")); code != 0 || errs != "" || !regexp.MustCompile(`(?m)^name +n1 `).MatchString(out) {
		t.Errorf("%s: exit %d: %s%s\n%s", what, code, out, errs, settings)
	}
}

// certsOfNode creates the certificates of the node n1.
func certsOfNode(t *testing.T) (dir string) {
	dir = t.TempDir()
	runCert(t, "ca", "--dir", dir)
	runCert(t, "node", "n1", "--host", "n1", "--ip", "10.0.0.1", "--dir", dir)
	runCert(t, "client", "carillon", "--dir", dir)

	return dir
}

func TestAutomation_CloudInitWritesSettingsThatAgentsAccept(t *testing.T) {
	dir := certsOfNode(t)
	files, err := filepath.Glob("../../deploy/cloud-init/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}

	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), "{{ v1.local_hostname }}", "n1")
		if !strings.HasPrefix(text, "## template: jinja\n#cloud-config\n") || strings.Contains(text, "{{") {
			t.Errorf("%s is not cloud-config, or has another variable", path)
		}

		var data struct {
			WriteFiles []struct{ Path, Permissions, Content string } `json:"write_files"`
			RunCmd     []string                                      `json:"runcmd"`
		}
		if err := yaml.UnmarshalStrict([]byte(text), &data); err != nil || len(data.WriteFiles) == 0 || data.WriteFiles[0].Path != "/etc/carillon/agent.yaml" {
			t.Fatalf("%s: %v, %v", path, data, err)
		}
		acceptSettings(t, path, data.WriteFiles[0].Content, dir)

		for _, command := range data.RunCmd {
			if out, err := exec.Command("/bin/sh", "-n", "-c", command).CombinedOutput(); err != nil {
				t.Errorf("%s: %s: %s", path, command, out)
			}
		}
	}
}

func TestAutomation_AnsibleFilesAreYAML(t *testing.T) {
	n := 0
	err := filepath.WalkDir("../../deploy/ansible", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yml" {
			return err
		}
		n++
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		var v any
		if err := yaml.UnmarshalStrict(b, &v); err != nil || v == nil {
			t.Errorf("%s: %v, %v", path, v, err)
		}
		return nil
	})
	if err != nil || n < 6 {
		t.Errorf("%d files, %v", n, err)
	}
}

// Needs Ansible: without it, only the syntax of the files is checked.
func TestAutomation_AnsibleWritesSettingsThatAgentsAccept(t *testing.T) {
	ansible, err := exec.LookPath("ansible-playbook")
	if err != nil {
		t.Skip("ansible-playbook is not installed")
	}
	if testing.Short() {
		t.Skip("Ansible takes several seconds")
	}

	root, err := filepath.Abs("../../deploy/ansible")
	if err != nil {
		t.Fatal(err)
	}

	// A role with the defaults and the template of the role, whose only task renders the template.
	dir := t.TempDir()
	role := filepath.Join(dir, "roles", "render")
	for path, text := range map[string]string{
		filepath.Join(role, "tasks", "main.yml"): "- ansible.builtin.template: {src: agent.yaml.j2, dest: " + dir + "/agent.yaml}\n",
		filepath.Join(dir, "render.yml"):         "- {hosts: n1, gather_facts: false, connection: local, roles: [render]}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"defaults", "templates"} {
		if err := os.Symlink(filepath.Join(root, "roles", "carillon", name), filepath.Join(role, name)); err != nil {
			t.Fatal(err)
		}
	}

	certs := certsOfNode(t)
	for inventory, want := range map[string]string{"inventory.yml": "n3: https://10.0.0.3:2380", "inventory-etcd.yml": "roles:\n- scheduler\n- api"} {
		cmd := exec.Command(ansible, "-i", filepath.Join(root, inventory), filepath.Join(dir, "render.yml"))
		cmd.Env = append(os.Environ(), "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", inventory, err, out)
		}

		b, err := os.ReadFile(filepath.Join(dir, "agent.yaml"))
		if err != nil || !strings.Contains(string(b), want) {
			t.Fatalf("%s: %v\n%s", inventory, err, b)
		}
		acceptSettings(t, inventory, string(b), certs)
	}
}
