import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { messageOf } from '../../src/base/index.ts';
import {
  connectToCluster,
  DAEMON_SETS,
  type KubeClient,
  NAMESPACES,
  SERVICE_ACCOUNTS,
} from '../../src/kube/index.ts';
import { type RealApi, startRealApi } from './real-api.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
export const AGENT = 'longshore-node-agent';
export const MOVER = 'longshore-data-mover';
export const HOST_PODS = '/var/lib/kubelet/pods';

/** A real API server with agents' manifests beside Velero, and clients with their tokens. */
export class PolicedCluster implements AsyncDisposable {
  readonly api: RealApi;
  readonly #clients: KubeClient[] = [];

  private constructor(api: RealApi) {
    this.api = api;
  }

  static async start(portBase: number): Promise<PolicedCluster> {
    // With these flags pods get the token of their account, as in clusters.
    const cluster = new PolicedCluster(await startRealApi(portBase, { auditOf: 'velero' }));
    const { api } = cluster;
    for (const name of ['velero', 'app']) {
      await api.client.create(NAMESPACES, { metadata: { name } });
    }
    const server = { namespace: 'velero', name: 'longshore-server' };
    await api.client.create(SERVICE_ACCOUNTS, { metadata: server });
    await api.kubectl('apply', '-k', join(ROOT, 'manifests/beside-velero'));
    await cluster.annotate({ 'longshore.io/host-pods': HOST_PODS });
    // Policies and their parameters take effect a moment after their creation.
    const agent = await cluster.clientOf(AGENT);
    const spec = { containers: [{ name: 'a', image: 'evil' }] };
    const hostile = { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'x' }, spec };
    const pods = '/api/v1/namespaces/velero/pods';
    for (let i = 0; i < 300; i++) {
      const said = await cluster.answer(agent, 'POST', pods, hostile);
      if (said.includes('denied request')) break;
      await sleep(100);
    }
    return cluster;
  }

  /** Sets annotations on the template of the DaemonSet; null removes one. */
  async annotate(annotations: Readonly<Record<string, string | null>>): Promise<void> {
    const spec = { template: { metadata: { annotations } } };
    await this.api.client.patch(DAEMON_SETS, { namespace: 'velero', name: AGENT }, { spec });
  }

  /** `pod`: binds the token to this pod, like a kubelet. */
  async clientOf(account: string, pod?: string): Promise<KubeClient> {
    const { api } = this;
    const bound = pod === undefined ? [] : ['--bound-object-kind=Pod', '--bound-object-name', pod];
    const token = await api.kubectl('-n', 'velero', 'create', 'token', account, ...bound);
    const path = join(api.directory, `${account}-${pod ?? ''}.kubeconfig`);
    const admin = JSON.parse(
      await api.kubectl('config', 'view', '--raw', '--minify', '-o', 'json'),
    ) as { users: object[] };
    const config = { ...admin, users: [{ name: 'u', user: { token: token.trim() } }] };
    writeFileSync(path, JSON.stringify(config), { mode: 0o600 });
    const client = connectToCluster({ kubeconfig: path, userAgent: 'longshore-test/1' });
    this.#clients.push(client);
    return client;
  }

  /** The API server's dry-run answer to a request: `admitted`, or the reason of a refusal. */
  async answer(
    client: KubeClient,
    method: 'POST' | 'PUT' | 'PATCH' | 'DELETE',
    path: string,
    body?: object,
  ): Promise<string> {
    try {
      await client.raw({
        method,
        path: `${path}?dryRun=All`,
        ...(body && { body }),
        ...(method === 'PATCH' && { contentType: 'application/merge-patch+json' }),
      });
      return 'admitted';
    } catch (error) {
      return messageOf(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const client of this.#clients) client.close();
    await this.api[Symbol.asyncDispose]();
  }
}
