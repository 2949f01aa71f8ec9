import { expect } from 'vitest';
import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import type { PageScript } from '../../support/docs/follow-page.ts';
import { removeCopies } from './prepared.ts';

const BUCKET = 'theirs';
/** For Velero's own agent, which moves no data here: the node has no such directories. */
const WITHOUT_VOLUMES = JSON.stringify(
  ['/spec/template/spec/volumes', '/spec/template/spec/containers/0/volumeMounts'].map((path) => ({
    op: 'remove',
    path,
  })),
);

/** The real one, as its own documentation does it, with a schedule. Its server runs as a pod. */
export async function installVelero(cluster: DocumentedCluster): Promise<void> {
  const config = `region=minio,s3ForcePathStyle=true,s3Url=${cluster.store.endpoint}`;
  await cluster.makeBucket(BUCKET);
  await cluster.sh(`velero install --provider aws --plugins velero/velero-plugin-for-aws:v1.14.3 --image velero/velero:v1.18.3 \
      --bucket ${BUCKET} --backup-location-config ${config} --snapshot-location-config region=minio --secret-file ./credentials \
      --use-node-agent --features=EnableCSI
    kubectl -n velero patch daemonset node-agent --type=json -p '${WITHOUT_VOLUMES}'
    kubectl -n velero rollout status deployment/velero --timeout=300s
    kubectl -n velero rollout status daemonset/node-agent --timeout=300s
    kubectl -n velero wait bsl/default --for=jsonpath='{.status.phase}'=Available --timeout=300s
    velero schedule create nightly --schedule "0 2 * * *" --include-namespaces shop`);
}

export function withVeleroPage(cluster: DocumentedCluster): PageScript {
  const answers = (): Promise<string> =>
    cluster.sh(`kubectl -n velero rollout status deployment/velero --timeout=300s
      until velero plugin get > /dev/null; do sleep 0.2; done`);
  return {
    page: 'docs/with-velero.md',
    steps: {
      'velero plugin add': { answer: ['continue (Y/N)?', 'y\n'] },
      'velero plugin get': {
        before: answers,
        after: ({ out }) => {
          for (const name of ['dataupload-delete', 'group-snapshot-delete', 'pod-volume-backup']) {
            expect(out).toContain(`longshore.io/${name}`);
          }
        },
      },
      'velero backup create try': {
        after: ({ out }) => expect(out).toContain('Backup completed with status: Completed'),
      },
      'velero backup describe try': {
        after: ({ out }) => expect(out).toContain('shop/data'),
      },
      'velero repo get': { after: ({ out }) => expect(out).toMatch(/Ready/) },
    },
  };
}

export function switchPage(cluster: DocumentedCluster): PageScript {
  const phaseOf = (name: string): Promise<string> =>
    cluster.sh(`kubectl -n velero get schedules.velero.io ${name} -o jsonpath='{.spec.paused}'`);
  return {
    page: 'docs/switch-from-velero.md',
    steps: {
      'velero restore create': {
        before: () => removeCopies(cluster),
        after: ({ out }) => expect(out).toContain('Restore completed with status: Completed'),
      },
      'kubectl -n velero scale deployment velero --replicas=0': {
        after: () =>
          cluster.sh('kubectl -n velero wait --for=delete pod -l deploy=velero --timeout=300s'),
      },
      'longshore backup get': { after: ({ out }) => expect(out).toContain('try-longshore') },
      'longshore backup create after-switch': {
        after: ({ out, err }) => expect(out + err).toContain('after-switch has ended: Completed'),
      },
      'longshore schedule unpause': {
        after: async () => expect(await phaseOf('nightly')).not.toBe('true'),
      },
      'velero schedule unpause': {
        before: () =>
          cluster.sh('kubectl -n velero rollout status deployment/velero --timeout=300s'),
        after: async () => {
          expect(await phaseOf('nightly')).not.toBe('true');
          expect(await cluster.sh('velero backup get')).toContain('after-switch');
        },
      },
    },
  };
}
