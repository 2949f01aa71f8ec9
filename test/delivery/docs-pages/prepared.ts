import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import { DATA_DOWNLOADS, DATA_UPLOADS, type DataUpload } from '../../../src/kube/index.ts';

/** As docs/install.md does it. */
export async function installLongshore(cluster: DocumentedCluster): Promise<void> {
  await cluster.sh(`longshore install --image registry.example.com/longshore:1 --provider aws --bucket velero \
    --backup-location-config region=eu-central-1 --secret-file ./credentials --wait`);
}

export async function uninstallLongshore(cluster: DocumentedCluster): Promise<void> {
  await cluster.sh('longshore uninstall --force --cancel-timeout 1s');
}

/** A backup of the application with its volumes. */
export async function makeBackup(cluster: DocumentedCluster, name: string): Promise<void> {
  const flags = '--include-namespaces shop --snapshot-move-data --wait --labels env=prod';
  await cluster.sh(`longshore backup create ${name} ${flags}`);
}

/** Deletes the backups that exist. */
export async function removeBackups(
  cluster: DocumentedCluster,
  ...names: readonly string[]
): Promise<void> {
  for (const name of names) {
    await cluster.sh(
      `! longshore backup get ${name} || longshore backup delete ${name} --confirm --wait`,
    );
  }
}

/** Deletes the copy that a page creates, so that the next page can create it again. */
export async function removeCopies(cluster: DocumentedCluster): Promise<void> {
  await cluster.sh('kubectl delete namespace shop-copy --ignore-not-found');
}

/**
 * Creates a backup that waits for another product's data mover, so it can be canceled. The test
 * plays that data mover, which ends when canceled. Resolves once the backup waits.
 */
export async function makeWaitingBackup(cluster: DocumentedCluster, name: string): Promise<void> {
  await cluster.sh(
    `longshore backup create ${name} --include-namespaces shop --snapshot-move-data --data-mover tar`,
  );
  await untilWaiting(cluster, name);
  void endUploadsWhen(cluster, name, ({ spec }) => spec.cancel === true);
}

async function untilWaiting(cluster: DocumentedCluster, backup: string): Promise<void> {
  await cluster.sh(
    `kubectl -n velero wait backups.velero.io/${backup} --for=jsonpath='{.status.phase}'=WaitingForPluginOperations --timeout=300s`,
  );
}

/** As the data mover that nobody runs here ends its part of a backup. */
export async function endUploads(cluster: DocumentedCluster, backup: string): Promise<void> {
  await untilWaiting(cluster, backup);
  await endUploadsWhen(cluster, backup, () => true);
}

async function endUploadsWhen(
  { client }: DocumentedCluster,
  backup: string,
  isOver: (upload: DataUpload) => boolean,
): Promise<void> {
  const scope = { namespace: 'velero', labelSelector: `velero.io/backup-name=${backup}` };
  for (;;) {
    const uploads = await client.list(DATA_UPLOADS, scope);
    const over = uploads.filter(isOver);
    for (const { metadata } of over) {
      await client.patch(DATA_UPLOADS, metadata, { status: { phase: 'Canceled' } });
    }
    if (over.length === uploads.length) return;
    await new Promise((resume) => setTimeout(resume, LOOK_MS));
  }
}

/**
 * Stops all agents, so new requests wait. Returns the UIDs of DataDownloads that were already
 * canceled.
 */
export async function stopAgents(cluster: DocumentedCluster): Promise<ReadonlySet<string>> {
  await cluster.sh(`kubectl -n velero patch daemonset node-agent --type merge -p '${agentsOn('"none"')}'
    kubectl -n velero wait --for=delete pod -l role=node-agent --timeout=300s`);
  return canceled(cluster);
}

/** Starts the agents once another DataDownload is canceled, and then resolves. */
export async function restartAgentsAtCancel(
  cluster: DocumentedCluster,
  before: ReadonlySet<string>,
): Promise<void> {
  while ((await canceled(cluster)).isSubsetOf(before)) {
    await new Promise((resume) => setTimeout(resume, LOOK_MS));
  }
  const patch = agentsOn('null');
  await cluster.sh(`kubectl -n velero patch daemonset node-agent --type merge -p '${patch}'`);
}

async function canceled({ client }: DocumentedCluster): Promise<Set<string>> {
  const downloads = await client.list(DATA_DOWNLOADS, { namespace: 'velero' });
  const asked = downloads.filter(({ spec }) => spec.cancel === true);
  return new Set(asked.map(({ metadata }) => metadata.uid));
}

const LOOK_MS = 200;
const agentsOn = (host: string): string =>
  `{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":${host}}}}}}`;

/** Objects without volumes. */
export async function makeSmallBackup(
  cluster: DocumentedCluster,
  name: string,
  labels = 'env=prod',
): Promise<void> {
  const flags = `--include-namespaces shop --snapshot-volumes=false --wait --labels ${labels}`;
  await cluster.sh(`longshore backup create ${name} ${flags}`);
}

/** `what`: as kubectl names it. */
export async function untilCompleted(cluster: DocumentedCluster, what: string): Promise<void> {
  await cluster.sh(
    `kubectl -n velero wait ${what} --for=jsonpath='{.status.phase}'=Completed --timeout=300s`,
  );
}

/** Down: when no restore is under way any more that could bring its pod back. */
export async function scaleShop(cluster: DocumentedCluster, replicas: 0 | 1): Promise<void> {
  if (replicas === 0) {
    await cluster.sh(`[ -z "$(kubectl -n velero get restores.velero.io -o name)" ] ||
      kubectl -n velero wait restores.velero.io --all --for=jsonpath='{.status.completionTimestamp}' --timeout=300s`);
  }
  const wait = replicas === 0 ? 'wait --for=delete pod/db-0' : 'rollout status statefulset/db';
  await cluster.sh(`kubectl -n shop scale statefulset/db --replicas=${replicas}
    kubectl -n shop ${wait} --timeout=300s`);
}
