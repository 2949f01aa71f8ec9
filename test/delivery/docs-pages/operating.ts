import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import type { PageScript } from '../../support/docs/follow-page.ts';
import { removeCopies } from './prepared.ts';

export function nodeAgentPage(cluster: DocumentedCluster): PageScript {
  return {
    page: 'docs/node-agent.md',
    steps: {
      'velero backup create b1': {
        after: () =>
          cluster.sh(
            `kubectl -n velero wait backups.velero.io/b1 --for=jsonpath='{.status.phase}'=Completed --timeout=300s`,
          ),
      },
      'helm install': { before: () => cluster.sh('kubectl delete -k manifests/beside-velero') },
      'helm test': {
        before: () =>
          cluster.sh(
            'kubectl -n velero rollout status daemonset/longshore-node-agent --timeout=300s',
          ),
        after: ({ out }) => expect(out).toMatch(/Phase: +Succeeded/),
      },
    },
  };
}

const newest = (cluster: DocumentedCluster, kind: string): Promise<string> =>
  cluster.sh(`kubectl -n velero get ${kind} -o jsonpath='{.items[0].metadata.name}'`);

export function operatingPage(cluster: DocumentedCluster): PageScript {
  const names = { upload: '', download: '' };
  return {
    page: 'docs/operating.md',
    replace: {
      'dataupload NAME': () => `dataupload ${names.upload}`,
      'datadownload NAME': () => `datadownload ${names.download}`,
      'volumesnapshot NAME': () => `volumesnapshot ${names.upload}`,
      'volumesnapshotcontent NAME': () => `volumesnapshotcontent ${names.upload}`,
      'node NODE ': 'node node-1 ',
      SECRET: 'cloud-credentials',
    },
    steps: {
      'kubectl -n velero exec ds/node-agent -- longshore node-agent status              # what': {
        before: async () => {
          await removeCopies(cluster);
          await cluster.sh(
            'velero restore create shop-copy --from-backup b1 --namespace-mappings shop:shop-copy --wait',
          );
          names.upload = await newest(cluster, 'datauploads');
          names.download = await newest(cluster, 'datadownloads');
        },
      },
      'kubectl -n velero exec -it ds/node-agent': { until: 'nothing is under way' },
      'longshore backup logs nightly-20261126': {
        before: () =>
          cluster.sh(
            'velero backup create nightly-20261126 --include-namespaces shop --snapshot-move-data --wait',
          ),
      },
      'kubectl taint node': {
        after: () =>
          cluster.sh('kubectl taint node node-1 node.kubernetes.io/out-of-service:NoExecute-'),
      },
      'kubectl -n velero get dataupload NAME -w': { until: 'Completed' },
      'kubectl -n velero logs -l role=node-agent --tail=-1': { code: 1 },
    },
  };
}

export function fileSystemBackupPage(): PageScript {
  return { page: 'docs/file-system-backup.md' };
}

export function repositoriesPage(cluster: DocumentedCluster): PageScript {
  return {
    page: 'docs/repositories.md',
    steps: {
      'kubectl delete -k manifests/server': {
        before: () =>
          // Velero does not start if its flag names a controller twice.
          cluster.sh(`kubectl -n velero get deployment velero -o jsonpath='{..args}' | grep -q -- --disable-controllers=backup-repo ||
              kubectl -n velero patch deployment velero --type=json -p '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--disable-controllers=backup-repo"}]'
            kubectl apply -k manifests/server`),
      },
      'kubectl -n velero edit deployment velero': {
        after: () =>
          cluster.sh('kubectl -n velero rollout status deployment/velero --timeout=300s'),
      },
    },
  };
}

export function passwordsPage(cluster: DocumentedCluster): PageScript {
  const newPassword = join(cluster.directory, 'new-password');
  return {
    page: 'docs/passwords.md',
    steps: {
      'longshore repository change-password-all -n velero --dry-run': {
        before: () => {
          fs.writeFileSync(newPassword, 'second-password');
        },
      },
      'kubectl -n velero create secret generic longshore-new-password': {
        before: () => {
          fs.writeFileSync(newPassword, 'third-password');
        },
      },
      'kubectl -n velero logs job/longshore-change-password': {
        after: async ({ out }) => {
          expect(out).not.toBe('');
          const secret = `kubectl -n velero get secret velero-repo-credentials -o jsonpath='{.data.repository-password}' | base64 -d`;
          expect(await cluster.sh(secret)).toBe('third-password');
        },
      },
    },
  };
}

export function replaceNodeAgentPage(cluster: DocumentedCluster): PageScript {
  let download = '';
  return {
    page: 'docs/replace-node-agent.md',
    replace: { 'datadownload NAME': () => `datadownload ${download}` },
    steps: {
      'kubectl -n velero wait --for=delete daemonset/node-agent': {
        before: async () => {
          download = await newest(cluster, 'datadownloads');
          await cluster.sh('kubectl -n velero delete daemonset node-agent');
        },
      },
      'kubectl -n velero exec ds/node-agent -- longshore node-agent status      # "nothing': {
        before: () =>
          cluster.sh('kubectl -n velero rollout status daemonset/node-agent --timeout=300s'),
        after: ({ out, err }) => {
          expect(out + err).toContain('nothing is under way');
        },
      },
      'velero schedule unpause': {
        before: () => cluster.sh('kubectl apply -f node-agent-before.yaml'),
      },
    },
  };
}
