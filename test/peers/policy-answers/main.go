// policy-answers says what Velero's own packages answer about volume policies. It reads lines of JSON from stdin: first the objects of
// a cluster, then policies; each of these gets one line of JSON. An answer is the error, or what is decided about every volume.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vmware-tanzu/velero/internal/resourcepolicies"
	"github.com/vmware-tanzu/velero/internal/volumehelper"
	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/kuberesource"
)

type world struct {
	Volumes []corev1.PersistentVolume
	Claims  []corev1.PersistentVolumeClaim
	Pods    []corev1.Pod
}

type question struct {
	// The text of a ConfigMap, or nil for a backup without policies.
	Policies *string
	// Of a second ConfigMap, that of all backups.
	Global           *string
	SnapshotVolumes  *bool
	DefaultToFiles   bool
	BackupExcludePVC bool
	MatchParameters  map[string]any
	// Only whether it is accepted.
	ParseOnly bool
}

type answer struct {
	Error string `json:"error,omitempty"`
	// By the place of the object in its list: "yes", "no", or "error".
	VolumeSnapshots []string   `json:"volumeSnapshots,omitempty"`
	ClaimSnapshots  []string   `json:"claimSnapshots,omitempty"`
	VolumeCustom    []string   `json:"volumeCustom,omitempty"`
	ClaimCustom     []string   `json:"claimCustom,omitempty"`
	VolumeActions   []string   `json:"volumeActions,omitempty"`
	ClaimActions    []string   `json:"claimActions,omitempty"`
	Files           [][]string `json:"files,omitempty"`
}

var scheme = runtime.NewScheme()

func main() {
	must(corev1.AddToScheme(scheme))
	must(api.AddToScheme(scheme))
	log := logrus.New()
	log.SetOutput(io.Discard)
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var w world
	must(json.Unmarshal(line(lines), &w))
	for {
		text := line(lines)
		if text == nil {
			return
		}
		var q question
		must(json.Unmarshal(text, &q))
		for key, value := range q.MatchParameters {
			// A plugin in Go asks with a number of the type that YAML gives.
			if number, ok := value.(float64); ok && number == float64(int(number)) {
				q.MatchParameters[key] = int(number)
			}
		}
		bytes, err := json.Marshal(ask(w, q, log))
		must(err)
		out.Write(append(bytes, '\n'))
	}
}

func ask(w world, q question, log *logrus.Logger) answer {
	builder := fake.NewClientBuilder().WithScheme(scheme)
	if !q.ParseOnly {
		for i := range w.Volumes {
			builder.WithObjects(&w.Volumes[i])
		}
		for i := range w.Claims {
			builder.WithObjects(&w.Claims[i])
		}
		for i := range w.Pods {
			builder.WithObjects(&w.Pods[i])
		}
	}
	backup := api.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b"}}
	builder.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "velero"}})
	if q.Policies != nil {
		backup.Spec.ResourcePolicy = &corev1.TypedLocalObjectReference{Kind: "configmap", Name: "own"}
		builder.WithObjects(configMap("own", *q.Policies))
	}
	global := ""
	if q.Global != nil {
		global = "global"
		builder.WithObjects(configMap(global, *q.Global))
	}
	c := builder.Build()
	policies, err := resourcepolicies.GetResourcePoliciesFromBackupWithGlobal(backup, c, global, "velero", log)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if q.ParseOnly {
		return answer{}
	}
	helper, err := volumehelper.NewVolumeHelperImplWithNamespaces(
		policies, q.SnapshotVolumes, log, c, q.DefaultToFiles, q.BackupExcludePVC, namespaces(w))
	must(err)
	a := answer{}
	for i := range w.Volumes {
		item := object(c, &w.Volumes[i])
		resource := kuberesource.PersistentVolumes
		a.VolumeSnapshots = append(a.VolumeSnapshots, said(helper.ShouldPerformSnapshot(item, resource)))
		a.VolumeCustom = append(a.VolumeCustom, said(helper.ShouldPerformCustomAction(item, resource, q.MatchParameters)))
		a.VolumeActions = append(a.VolumeActions, action(helper.GetActionParameters(item, resource)))
	}
	for i := range w.Claims {
		item := object(c, &w.Claims[i])
		resource := kuberesource.PersistentVolumeClaims
		a.ClaimSnapshots = append(a.ClaimSnapshots, said(helper.ShouldPerformSnapshot(item, resource)))
		a.ClaimCustom = append(a.ClaimCustom, said(helper.ShouldPerformCustomAction(item, resource, q.MatchParameters)))
		a.ClaimActions = append(a.ClaimActions, action(helper.GetActionParameters(item, resource)))
	}
	for _, pod := range w.Pods {
		files := []string{}
		for _, volume := range pod.Spec.Volumes {
			files = append(files, said(helper.ShouldPerformFSBackup(volume, pod)))
		}
		a.Files = append(a.Files, files)
	}
	return a
}

func configMap(name, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name},
		Data:       map[string]string{"policies": text},
	}
}

func namespaces(w world) []string {
	seen := map[string]bool{}
	all := []string{}
	for _, pod := range w.Pods {
		if !seen[pod.Namespace] {
			seen[pod.Namespace] = true
			all = append(all, pod.Namespace)
		}
	}
	return all
}

// As the API server gives it, since that is what items of a backup are.
func object(c client.Client, o client.Object) runtime.Unstructured {
	must(c.Get(context.Background(), client.ObjectKeyFromObject(o), o))
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	must(err)
	return &unstructured.Unstructured{Object: content}
}

func said(yes bool, err error) string {
	switch {
	case err != nil:
		return "error"
	case yes:
		return "yes"
	}
	return "no"
}

func action(found bool, kind string, parameters map[string]any, err error) string {
	switch {
	case err != nil:
		return "error"
	case !found:
		return ""
	}
	text, err := json.Marshal(parameters)
	if err != nil {
		return kind
	}
	return fmt.Sprintf("%s %s", kind, text)
}

func line(r *bufio.Reader) []byte {
	text, err := r.ReadBytes('\n')
	if err == io.EOF && len(text) == 0 {
		return nil
	}
	if err != nil && err != io.EOF {
		panic(err)
	}
	return text
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
