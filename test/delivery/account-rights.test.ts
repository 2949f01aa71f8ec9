import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { messageOf } from '../../src/base/index.ts';
import {
  type BackupRepository,
  connectToCluster,
  type Deployment,
  DEPLOYMENTS,
  type KubeClient,
  NAMESPACES,
  SECRETS,
} from '../../src/kube/index.ts';
import { parseBackupStorageLocation } from '../../src/config/index.ts';
import {
  grantCommand,
  secretValue,
  unreadableSecrets,
} from '../../src/repository-access/location-files.ts';
import type { JobConfig } from '../../src/server/repositories/maintenance/job-config.ts';
import { maintenanceJob } from '../../src/server/repositories/maintenance/job.ts';
import { hasHelm, ofKind, parseManifests, renderChart } from '../support/manifests.ts';
import { PolicedCluster } from '../support/policed-cluster.ts';
import { type RealApi, startRealApi } from '../support/real-api.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const OVERLAYS = ['beside-velero', 'server-for-cli', 'verify', 'change-password'];
const ACCOUNTS = ['server', 'repo-maintenance', 'data-mover', 'verify', 'change-password'].map(
  (name) => `longshore-${name}`,
);
/** Read by the server, and by a change of the password. */
const KEYS = 'longshore-archive-keys';
const THEIRS = ['velero-repo-credentials', 'cloud-credentials'];
const OTHERS = ['longshore-tls', 'second-location', 'longshore-status-page-token'];

describe.skipIf(!hasHelm())('Secrets of the namespace, on a real API server', () => {
  let api: RealApi;
  const clients: KubeClient[] = [];
  beforeAll(async () => {
    api = await startRealApi(31_300);
    for (const namespace of ['velero', 'chart']) {
      await api.client.create(NAMESPACES, { metadata: { name: namespace } });
      for (const name of [...THEIRS, ...OTHERS]) {
        await api.client.create(SECRETS, {
          metadata: { namespace, name },
          data: { cloud: 'eA==' },
        });
      }
    }
    for (const name of OVERLAYS) {
      await api.kubectl('apply', '-k', join(ROOT, 'manifests', name));
    }
  }, 120_000);
  afterAll(async () => {
    for (const client of clients) client.close();
    await api[Symbol.asyncDispose]();
  });

  async function clientOf(account: string, namespace = 'velero'): Promise<KubeClient> {
    const token = (await api.kubectl('-n', namespace, 'create', 'token', account)).trim();
    const text = fs.readFileSync(api.kubeconfig, 'utf8');
    const kubeconfig = join(api.directory, `${namespace}-${account}.kubeconfig`);
    fs.writeFileSync(kubeconfig, text.replace(/token: "[^"]*"/, `token: "${token}"`));
    const client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
    clients.push(client);
    return client;
  }

  /** The names that an account reads, each by a request of its own. */
  async function readableBy(client: KubeClient, namespace = 'velero'): Promise<string[]> {
    const names: string[] = [];
    for (const name of [...THEIRS, ...OTHERS]) {
      try {
        await client.get(SECRETS, { namespace, name });
        names.push(name);
      } catch (error) {
        expect(messageOf(error)).toContain('cannot get resource "secrets"');
      }
    }
    return names;
  }

  it.each(ACCOUNTS)('are closed to %s, except for those that its Role names', async (account) => {
    const client = await clientOf(account);
    expect(await readableBy(client)).toEqual(THEIRS);
    const refused = /cannot (list|watch|update|delete) resource "secrets"/;
    await expect(client.list(SECRETS, { namespace: 'velero' })).rejects.toThrow(refused);
    const path = '/api/v1/namespaces/velero/secrets';
    await expect(client.raw({ method: 'GET', path: `${path}?watch=1` })).rejects.toThrow(refused);
    await expect(
      client.raw({ method: 'DELETE', path: `${path}/cloud-credentials` }),
    ).rejects.toThrow(refused);
    await expect(
      client.get(SECRETS, { namespace: 'chart', name: THEIRS[0] ?? '' }),
    ).rejects.toThrow('cannot get resource "secrets"');
  });

  it('have the keys of archives open to the server and to a change of the password, and to no other account', async () => {
    const ref = { namespace: 'velero', name: KEYS };
    const { metadata } = await api.client.create(SECRETS, { metadata: ref, data: {} });
    for (const account of ACCOUNTS) {
      const client = await clientOf(account);
      if (!/server|change-password/.test(account)) {
        await expect(client.get(SECRETS, ref)).rejects.toThrow('cannot get resource "secrets"');
        continue;
      }
      const data = { keys: Buffer.from(account).toString('base64') };
      const now = await client.get(SECRETS, ref);
      await client.replace(SECRETS, { ...now, metadata: { ...now.metadata }, data });
    }
    await api.client.delete(SECRETS, ref, { uid: metadata.uid });
  });

  it('are closed to the agent, all of them', async () => {
    expect(await readableBy(await clientOf('longshore-node-agent'))).toEqual([]);
  });

  it('are named in the error when a location has other credentials', async () => {
    const client = await clientOf('longshore-data-mover');
    const { signal } = new AbortController();
    const options = { client, namespace: 'velero', signal };
    const value = (): Promise<Buffer> =>
      secretValue(options, { name: 'second-location', key: 'cloud' });
    await expect(value()).rejects.toMatchObject({
      code: 'KUBE_FORBIDDEN',
      message: expect.stringContaining(grantCommand('velero', 'second-location')) as unknown,
    });
  });

  it('are opened by the command in the error, which install and the check print as well', async () => {
    const { signal } = new AbortController();
    const options = { client: api.client, namespace: 'velero', signal };
    const credential = { name: 'second-location', key: 'cloud' };
    const location = parseBackupStorageLocation({
      kind: 'BackupStorageLocation',
      metadata: { namespace: 'velero', name: 'second' },
      spec: { provider: 'aws', objectStorage: { bucket: 'b' }, credential },
    });
    expect(await unreadableSecrets(location, options)).toEqual(['second-location']);
    const commands = grantCommand('velero', 'second-location').split(' && ');
    for (const each of commands) await api.kubectl(...each.split(' ').slice(1));
    try {
      for (const account of ACCOUNTS) {
        const client = await clientOf(account);
        await expect.poll(() => readableBy(client)).toEqual([...THEIRS, 'second-location']);
      }
      expect(await readableBy(await clientOf('longshore-node-agent'))).toEqual([]);
      expect(await unreadableSecrets(location, options)).toEqual([]);
    } finally {
      for (const kind of ['role', 'rolebinding']) {
        await api.kubectl('-n', 'velero', 'delete', kind, 'longshore-reads-second-location');
      }
    }
  });

  it('are opened by the Role of docs/hardening.md, for its accounts only', async () => {
    const page = fs.readFileSync(join(ROOT, 'docs/hardening.md'), 'utf8');
    const section = page.slice(page.indexOf('## Secrets of locations'));
    const [, text = ''] = /```yaml\n(.*?)```/s.exec(section) ?? [];
    const file = join(api.directory, 'location-secrets.yaml');
    fs.writeFileSync(file, text);
    await api.kubectl('apply', '-f', file);
    try {
      for (const account of ['data-mover', 'repo-maintenance', 'server']) {
        const client = await clientOf(`longshore-${account}`);
        await expect.poll(() => readableBy(client)).toEqual([...THEIRS, 'second-location']);
      }
      expect(await readableBy(await clientOf('longshore-node-agent'))).toEqual([]);
    } finally {
      await api.kubectl('delete', '-f', file);
    }
  });

  it('are opened by a value of the chart, and one more name is one more', async () => {
    const flags = ['--set', 'server.enabled=true', '--set', 'verify.enabled=true'];
    const more = ['--set', 'credentials.locationSecrets={second-location}'];
    const names = (text: string): unknown[] =>
      ofKind(parseManifests(text), 'Role').flatMap(({ rules = [] }) =>
        rules.flatMap((rule) =>
          rule.resources.includes('secrets') && rule.verbs.includes('get')
            ? [(rule as { resourceNames?: string[] }).resourceNames]
            : [],
        ),
      );
    // The server has a rule of its own for the keys of archives.
    const ofAll = (text: string): unknown[] =>
      names(text).filter((each) => JSON.stringify(each) !== JSON.stringify([KEYS]));
    expect(names(renderChart(api, ...flags))).toContainEqual([KEYS]);
    expect(ofAll(renderChart(api, ...flags))).toEqual(Array(4).fill(THEIRS));
    const without = renderChart(api, ...flags, ...more, '--set', 'credentials.secretName=');
    expect(ofAll(without)).toEqual(Array(4).fill([THEIRS[0], 'second-location']));
    const file = join(api.directory, 'chart.yaml');
    fs.writeFileSync(file, renderChart(api, ...flags, ...more, '-n', 'chart'));
    await api.kubectl('apply', '-n', 'chart', '-f', file);
    for (const account of ['data-mover', 'repo-maintenance', 'server', 'verify']) {
      const client = await clientOf(`longshore-${account}`, 'chart');
      expect(await readableBy(client, 'chart')).toEqual([...THEIRS, 'second-location']);
    }
  });
});

type Change = (job: Draft) => void;
/** As much of a Job as is changed here. */
interface Draft {
  spec: {
    template: {
      metadata: { labels: Record<string, string>; annotations: Record<string, string> };
      spec: {
        containers: [Record<string, unknown> & { args: string[]; env: object[] }];
        volumes: object[];
        [field: string]: unknown;
      };
    };
  };
}
const container = (job: Draft) => job.spec.template.spec.containers[0];
const ofPod =
  (field: string, value: unknown): Change =>
  (job) => {
    job.spec.template.spec[field] = value;
  };
const ofContainer =
  (field: string, value: unknown): Change =>
  (job) => {
    container(job)[field] = value;
  };

/** Changes that a thief of the server's token would make to a Job, with the refusals. */
const ATTACKS: Readonly<Record<string, [Change, RegExp]>> = {
  "the account of Velero's server": [ofPod('serviceAccountName', 'velero'), /ServiceAccount of maintenance/],
  "the server's own account": [ofPod('serviceAccountName', 'longshore-server'), /ServiceAccount of maintenance/],
  'no account': [ofPod('serviceAccountName', undefined), /ServiceAccount of maintenance/],
  'another image': [ofContainer('image', 'evil'), /with the image of its Deployment/],
  'another command': [ofContainer('command', ['/bin/sh', '-c']), /runs repo-maintenance/],
  'another verb': [ofContainer('args', ['server', '--repo-name=x']), /runs repo-maintenance/],
  'an argument of its own': [(job) => container(job).args.push('--kubeconfig=/x'), /runs repo-maintenance/],
  'a second container': [(job) => (job.spec.template.spec.containers as object[]).push({ name: 'b', image: 'evil' }), /runs repo-maintenance/],
  'an init container': [ofPod('initContainers', [{ name: 'b', image: 'evil' }]), /runs repo-maintenance/],
  'a hook': [ofContainer('lifecycle', { preStop: { exec: { command: ['sh'] } } }), /no hooks/],
  'code in a variable': [(job) => container(job).env.push({ name: 'NODE_OPTIONS', value: '--import=data:text/javascript,0' }), /environment of its Deployment/],
  'a Secret in a variable': [(job) => container(job).env.push({ name: 'X', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } }), /environment of its Deployment/],
  'a Secret in the variable with its name': [(job) => (container(job).env = [{ name: 'LONGSHORE_JOB_NAME', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } }]), /environment of its Deployment/],
  'a variable in a variable': [(job) => container(job).env.push({ name: 'LONGSHORE_JOB_NAME', value: '$(X)' }), /environment of its Deployment/],
  'a variable in an argument': [(job) => (container(job).args[1] = '--repo-name=$(LONGSHORE_JOB_NAME)'), /runs repo-maintenance/],
  'the environment of a Secret': [ofContainer('envFrom', [{ secretRef: { name: 's' } }]), /environment of its Deployment/],
  'the root of the node': [(job) => job.spec.template.spec.volumes.push({ name: 'm', hostPath: { path: '/' } }), /mounts the volumes of its Deployment/],
  'a Secret': [(job) => job.spec.template.spec.volumes.push({ name: 'm', secret: { secretName: 's' } }), /mounts the volumes of its Deployment/],
  'scratch in the place of the program': [ofContainer('volumeMounts', [{ name: 'scratch', mountPath: '/app' }]), /mounts the volumes of its Deployment/],
  "the node's network": [ofPod('hostNetwork', true), /no namespaces of its node/],
  "the node's processes": [ofPod('hostPID', true), /no namespaces of its node/],
  'root': [ofPod('securityContext', { runAsUser: 0 }), /security context of its Deployment/],
  'all privileges': [ofContainer('securityContext', { privileged: true }), /security context of its Deployment/],
  'no security context': [ofContainer('securityContext', undefined), /security context of its Deployment/],
  'the labels of the server': [(job) => (job.spec.template.metadata.labels.name = 'longshore-server'), /not those of the server/],
  'no AppArmor': [(job) => (job.spec.template.metadata.annotations = { 'container.apparmor.security.beta.kubernetes.io/velero-repo-maintenance-container': 'unconfined' }), /not those of the server/],
}; // prettier-ignore

describe.skipIf(!hasHelm())('a server that makes no restores, on a real API server', () => {
  let cluster: PolicedCluster;
  let server: KubeClient;
  let deployment: Deployment;
  const jobs = '/apis/batch/v1/namespaces/velero/jobs';
  const secrets = '/api/v1/namespaces/velero/secrets';
  const ask = (path: string, body: object, client = server): Promise<string> =>
    cluster.answer(client, 'POST', path, body);
  const secretOf = (name: string, more: object = {}): object => ({
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name },
    data: {},
    ...more,
  });
  const tokenOf = (account: string): object => ({
    type: 'kubernetes.io/service-account-token',
    metadata: {
      name: 'cloud-credentials',
      annotations: { 'kubernetes.io/service-account.name': account },
    },
  });

  function jobOf(config: JobConfig = {}): Draft {
    const metadata = { name: 'app-default-kopia', namespace: 'velero', uid: 'u' };
    const spec = {
      volumeNamespace: 'app',
      backupStorageLocation: 'default',
      repositoryType: 'kopia',
    };
    const job = maintenanceJob({
      name: 'app-default-kopia-maintain-job-1',
      repository: { metadata, spec } as BackupRepository,
      deployment,
      config,
      command: ['/velero'],
      logLevel: 'info',
      logFormat: 'text',
    });
    return structuredClone({ apiVersion: 'batch/v1', kind: 'Job', ...job }) as unknown as Draft;
  }

  beforeAll(async () => {
    cluster = await PolicedCluster.start(31_400);
    await cluster.api.kubectl('apply', '-k', join(ROOT, 'manifests/server'));
    const ref = { namespace: 'velero', name: 'longshore-server' };
    deployment = await cluster.api.client.get(DEPLOYMENTS, ref);
    server = await cluster.clientOf('longshore-server');
    // Policies arrive a moment after they are made.
    for (let i = 0; i < 300; i++) {
      if ((await ask(secrets, secretOf('x'))).includes('denied request')) break;
      await sleep(100);
    }
  }, 120_000);
  afterAll(async () => {
    await (cluster as PolicedCluster | undefined)?.[Symbol.asyncDispose]();
  });

  it('creates the Secrets of the password and of archive keys alone', async () => {
    for (const name of ['velero-repo-credentials', 'longshore-archive-keys']) {
      expect(await ask(secrets, secretOf(name))).toBe('admitted');
    }
    const refused = 'creates no Secret but those of the repositories';
    for (const body of [
      secretOf('cloud-credentials'),
      secretOf('x', tokenOf('longshore-node-agent')),
      secretOf('velero-repo-credentials', {
        type: 'kubernetes.io/tls',
        data: { 'tls.crt': '', 'tls.key': '' },
      }),
    ]) {
      expect(await ask(secrets, body)).toContain(refused);
    }
  });

  it.each<[string, JobConfig]>([
    ['maintenance', {}],
    [
      'maintenance with settings',
      {
        podResources: { memoryLimit: '1Gi' },
        podLabels: { team: 'a' },
        podAnnotations: { note: 'b' },
        priorityClassName: 'low',
        loadAffinity: [{ nodeSelector: { matchLabels: { disk: 'ssd' } } }],
      },
    ],
  ])('creates Jobs for %s', async (_, config) => {
    const said = await ask(jobs, jobOf(config));
    expect(said.replace(/.*no PriorityClass with name low was found$/s, 'admitted')).toBe(
      'admitted',
    );
  });

  it.each(Object.keys(ATTACKS))('creates no Job with %s', async (name) => {
    const [change, words] = ATTACKS[name] as (typeof ATTACKS)[string];
    const job = jobOf();
    change(job);
    const said = await ask(jobs, job);
    expect(said).toMatch(words);
    expect(said).toContain("ValidatingAdmissionPolicy 'longshore-server'");
  });

  it('is not limited once it makes restores, and neither are others', async () => {
    const other = secretOf('x', tokenOf('longshore-node-agent'));
    expect(await ask(secrets, secretOf('y'), cluster.api.client)).toBe('admitted');
    const bind = join(ROOT, 'manifests/server-for-backups/restores-rbac.yaml');
    await cluster.api.kubectl('apply', '-f', bind);
    await expect.poll(() => ask(secrets, other), { interval: 100 }).toBe('admitted');
    await cluster.api.kubectl('delete', '-f', bind);
    await expect.poll(() => ask(secrets, other), { interval: 100 }).toContain('denied request');
  });
});
