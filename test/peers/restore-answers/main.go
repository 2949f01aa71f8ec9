// restore-answers says what Velero's own restore actions make of objects. It reads lines of JSON from stdin, each an action, an object and
// what the cluster has; each gets one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	"github.com/vmware-tanzu/velero/pkg/restore/actions"
)

type question struct {
	Action         string
	Item           map[string]any
	ItemFromBackup map[string]any
	Restore        api.RestoreSpec
	ConfigMaps     []corev1.ConfigMap
	StorageClasses []string
	Accounts       []string
}

type identifier struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type answer struct {
	Error           string         `json:"error,omitempty"`
	Item            map[string]any `json:"item,omitempty"`
	AdditionalItems []identifier   `json:"additionalItems,omitempty"`
	Skipped         bool           `json:"skipped,omitempty"`
}

type executor interface {
	Execute(*velero.RestoreItemActionExecuteInput) (*velero.RestoreItemActionExecuteOutput, error)
}

func main() {
	log := logrus.New()
	log.SetOutput(io.Discard)
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		text, err := lines.ReadBytes('\n')
		if err == io.EOF && len(text) == 0 {
			return
		}
		var q question
		must(json.Unmarshal(text, &q))
		bytes, err := json.Marshal(ask(q, log))
		must(err)
		out.Write(append(bytes, '\n'))
	}
}

func ask(q question, log *logrus.Logger) answer {
	if q.ItemFromBackup == nil {
		q.ItemFromBackup = runtime.DeepCopyJSON(numbers(q.Item).(map[string]any))
	}
	output, err := open(q, log).Execute(&velero.RestoreItemActionExecuteInput{
		Item:           &unstructured.Unstructured{Object: numbers(q.Item).(map[string]any)},
		ItemFromBackup: &unstructured.Unstructured{Object: numbers(q.ItemFromBackup).(map[string]any)},
		Restore:        &api.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "r"}, Spec: q.Restore},
	})
	if err != nil {
		return answer{Error: err.Error()}
	}
	result := answer{Skipped: output.SkipRestore}
	if output.UpdatedItem != nil {
		result.Item = output.UpdatedItem.UnstructuredContent()
	}
	for _, each := range output.AdditionalItems {
		result.AdditionalItems = append(result.AdditionalItems, identifier{each.Group, each.Resource, each.Namespace, each.Name})
	}
	return result
}

func open(q question, log *logrus.Logger) executor {
	cluster := kubefake.NewClientset()
	ctx := context.Background()
	for i := range q.ConfigMaps {
		_, err := cluster.CoreV1().ConfigMaps("velero").Create(ctx, &q.ConfigMaps[i], metav1.CreateOptions{})
		must(err)
	}
	for _, name := range q.StorageClasses {
		class := storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := cluster.StorageV1().StorageClasses().Create(ctx, &class, metav1.CreateOptions{})
		must(err)
	}
	maps := cluster.CoreV1().ConfigMaps("velero")
	switch q.Action {
	case "velero.io/add-pvc-from-pod":
		return actions.NewAddPVCFromPodAction(log)
	case "velero.io/admission-webhook-configuration":
		return actions.NewAdmissionWebhookConfigurationAction(log)
	case "velero.io/apiservice":
		return actions.NewAPIServiceAction(log)
	case "velero.io/change-image-name":
		return actions.NewChangeImageNameAction(log, maps)
	case "velero.io/change-storage-class":
		return actions.NewChangeStorageClassAction(log, maps, cluster.StorageV1().StorageClasses())
	case "velero.io/cluster-role-bindings":
		return actions.NewClusterRoleBindingAction(log)
	case "velero.io/crd-preserve-fields":
		return actions.NewCRDV1PreserveUnknownFieldsAction(log)
	case "velero.io/job":
		return actions.NewJobAction(log)
	case "velero.io/pod":
		return actions.NewPodAction(log)
	case "velero.io/pvc":
		return actions.NewPVCAction(log, maps, cluster.CoreV1().Nodes())
	case "velero.io/role-bindings":
		return actions.NewRoleBindingAction(log)
	case "velero.io/secret":
		scheme := runtime.NewScheme()
		must(corev1.AddToScheme(scheme))
		builder := fake.NewClientBuilder().WithScheme(scheme)
		for _, name := range q.Accounts {
			builder.WithObjects(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name}})
		}
		return actions.NewSecretAction(log, builder.Build())
	case "velero.io/service":
		return actions.NewServiceAction(log)
	case "velero.io/service-account":
		return actions.NewServiceAccountAction(log)
	}
	panic("no action " + q.Action)
}

// numbers makes whole numbers int64, as Kubernetes' own decoder does.
func numbers(value any) any {
	switch v := value.(type) {
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	case map[string]any:
		for key, each := range v {
			v[key] = numbers(each)
		}
	case []any:
		for i, each := range v {
			v[i] = numbers(each)
		}
	}
	return value
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
