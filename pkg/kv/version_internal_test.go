package kv

import "testing"

func TestCheckVersion_Table(t *testing.T) {
	for version, ok := range map[string]bool{
		"3.4.30": false, "3.5.21": false, "3.6.0": false, "3.6.13": false,
		"3.6.14": true, "3.6.20": true, "3.6.14-rc.0": false,
		"3.7.0": false, "3.7.0-rc.1": false, "3.7.1-alpha.0": false, "3.7.1": true, "3.7.3": true,
		"3.8.0": true, "4.0.0": true,
		"": false, "3": false, "three": false,
	} {
		if err := VersionFault(version); (err == nil) != ok {
			t.Errorf("version %q: %v", version, err)
		}
	}
}
