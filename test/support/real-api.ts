import { execFile } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parseAllDocuments } from 'yaml';
import { isCode } from '../../src/base/index.ts';
import {
  connectToCluster,
  CRDS,
  customResourceDefinition,
  type KubeClient,
} from '../../src/kube/index.ts';

const run = promisify(execFile);
export const PEERS_DIR =
  process.env.PEERS_DIR ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), '.peers');
const SCRIPTS = new URL('../peers/', import.meta.url).pathname;
const NEEDED = ['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubectl'];

/** Path of a peer's program, which may be missing. */
export const peer = (name: string): string => join(PEERS_DIR, 'bin', name);

/** True if these programs are installed. With REQUIRE_PEERS=1, it is an error if not. */
export function hasPeers(...names: string[]): boolean {
  const missing = names.filter((name) => !existsSync(peer(name)));
  if (missing.length === 0) return true;
  if (process.env.REQUIRE_PEERS === '1') {
    throw new Error(`peers are missing: ${missing.join(', ')}; run test/peers/install.sh`);
  }
  return false;
}

/** True if the binaries are installed. With REQUIRE_PEERS=1, it is an error if not. */
export function hasRealApi(): boolean {
  const missing = NEEDED.filter((name) => !existsSync(peer(name)));
  if (missing.length === 0) return true;
  if (process.env.REQUIRE_PEERS === '1') {
    throw new Error(
      `peers are missing: ${missing.join(', ')}; run test/peers/install.sh etcd kubernetes`,
    );
  }
  return false;
}

export interface RealApi extends AsyncDisposable {
  readonly kubeconfig: string;
  readonly client: KubeClient;
  readonly directory: string;
  readonly portBase: number;
  /** kubectl with this cluster. */
  kubectl(...parameters: string[]): Promise<string>;
  stack(command: 'up' | 'down', ...parts: string[]): Promise<void>;
}

/** An audit policy: records requests of this namespace's ServiceAccounts in `audit.log`. */
export const auditPolicy = (namespace: string): string =>
  JSON.stringify({
    apiVersion: 'audit.k8s.io/v1',
    kind: 'Policy',
    omitStages: ['RequestReceived'],
    rules: [
      { level: 'Metadata', userGroups: [`system:serviceaccounts:${namespace}`] },
      { level: 'None' },
    ],
  });

const WITHOUT_POLICIES = [
  '--disable-admission-plugins=ServiceAccount,ValidatingAdmissionPolicy',
  `--runtime-config=${['policies', 'policybindings']
    .map((kind) => `admissionregistration.k8s.io/v1/validatingadmission${kind}=false`)
    .join(',')}`,
].join(' ');

/**
 * etcd and kube-apiserver, with controller-manager and scheduler, and the CRDs that agents need.
 * `auditOf`: records requests of this namespace's ServiceAccounts, and refuses pods whose
 * ServiceAccount does not exist. `hasVeleroCrds`: installs Velero's own. `isBare`: a cluster
 * without Velero, with snapshots only, that runs DaemonSets. `hasPolicies`: false to omit
 * ValidatingAdmissionPolicy, as before Kubernetes 1.30.
 */
export async function startRealApi(
  portBase: number,
  {
    auditOf,
    hasVeleroCrds = false,
    isBare = false,
    hasPolicies = true,
  }: { auditOf?: string; hasVeleroCrds?: boolean; isBare?: boolean; hasPolicies?: boolean } = {},
): Promise<RealApi> {
  const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-api-'));
  const policy = join(directory, 'audit-policy.json');
  if (auditOf !== undefined) await fs.writeFile(policy, auditPolicy(auditOf));
  const auditFlags = `--audit-policy-file=${policy} --audit-log-path=${join(directory, 'audit.log')}`;
  const env = {
    ...process.env,
    ...(auditOf !== undefined && { API_FLAGS: auditFlags }),
    ...(!hasPolicies && { API_FLAGS: WITHOUT_POLICIES }),
    PEERS_DIR,
    PORT_BASE: String(portBase),
    KUBECONFIG: join(directory, 'kubeconfig'),
    // Nodes have no kubelet here, so no controller must notice its absence. The tests start agents.
    KCM_CONTROLLERS: `*,-node-lifecycle-controller${isBare ? '' : ',-daemonset-controller'}`,
  };
  const stack = async (command: string, ...parts: string[]): Promise<void> => {
    await run(join(SCRIPTS, 'stack.sh'), [command, directory, ...parts], { env });
  };
  try {
    await stack('up', 'etcd', 'api', 'kcm', 'sched');
    const kubeconfig = join(directory, 'kubeconfig');
    const client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
    if (isBare) for (const body of crdsIn('snapshot')) await createCrd(client, body);
    else
      await installCrds(
        client,
        hasVeleroCrds ? [...crdsIn('snapshot'), ...crdsIn('velero-v1')] : [],
      );
    await client.raw({
      method: 'POST',
      path: '/apis/storage.k8s.io/v1/csidrivers',
      body: {
        apiVersion: 'storage.k8s.io/v1',
        kind: 'CSIDriver',
        metadata: { name: 'dir.csi.longshore.dev' },
        spec: { attachRequired: false },
      },
    });
    return {
      kubeconfig,
      client,
      directory,
      portBase,
      kubectl: async (...parameters) => {
        const options = { env, maxBuffer: 64 << 20 };
        const { stdout } = await run(join(PEERS_DIR, 'bin/kubectl'), parameters, options);
        return stdout;
      },
      stack: (command, ...parts) => stack(command, ...parts),
      async [Symbol.asyncDispose]() {
        client.close();
        await stack('down');
        await fs.rm(directory, { recursive: true, force: true });
      },
    };
  } catch (error) {
    await stack('down').catch(() => undefined);
    throw error;
  }
}

function crdsIn(folder: string): object[] {
  const path = join(PEERS_DIR, 'crds', folder);
  return readdirSync(path).flatMap((name) =>
    parseAllDocuments(readFileSync(join(path, name), 'utf8')).map(
      (document) => document.toJS() as object,
    ),
  );
}

/**
 * The snapshot CRDs are the real ones. The location is the only needed CRD of Velero's own. The
 * first CRD of a name counts.
 */
async function installCrds(client: KubeClient, first: readonly object[]): Promise<void> {
  const ours = [...crdsIn('snapshot'), ...CRDS.map(customResourceDefinition), LOCATION_CRD];
  for (const body of [...first, ...ours]) {
    await createCrd(client, body);
  }
}

const CRD_PATH = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions';

/** Creates a CustomResourceDefinition and waits until it is served. */
export async function createCrd(client: KubeClient, body: object): Promise<void> {
  try {
    await client.raw({ method: 'POST', path: CRD_PATH, body });
  } catch (error) {
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
  }
  const { metadata } = body as { metadata: { name: string } };
  for (let attempt = 0; attempt < 100; attempt++) {
    const now = (await client.raw({ method: 'GET', path: `${CRD_PATH}/${metadata.name}` })) as {
      status?: { conditions?: { type: string; status: string }[] };
    };
    const isServed = now.status?.conditions?.some(
      ({ type, status }) => type === 'Established' && status === 'True',
    );
    if (isServed === true) return;
    await new Promise((resume) => setTimeout(resume, 100));
  }
  throw new Error(`${metadata.name} was not established`);
}

const LOCATION_CRD = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'backupstoragelocations.velero.io' },
  spec: {
    group: 'velero.io',
    names: {
      kind: 'BackupStorageLocation',
      listKind: 'BackupStorageLocationList',
      plural: 'backupstoragelocations',
      singular: 'backupstoragelocation',
    },
    scope: 'Namespaced',
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        schema: {
          openAPIV3Schema: {
            type: 'object',
            properties: { spec: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true } },
          },
        },
      },
    ],
  },
};
