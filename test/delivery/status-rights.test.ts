import { execFile, spawn } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Secret } from '../../src/base/index.ts';
import { browseReviews, clusterReviews } from '../../src/server/index.ts';
import { DATA_DOWNLOADS, DATA_UPLOADS, NAMESPACES } from '../../src/kube/index.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const BIN = join(ROOT, 'bin/longshore');
const NAMESPACE = 'velero';
const WAIT_MS = 120_000;

/**
 * As `kubectl exec ds/longshore-node-agent -- longshore node-agent status` runs it: with what
 * agents may do.
 */
describe.skipIf(!hasRealApi())('node-agent status with the rights of an agent', () => {
  let api: RealApi;
  let environment: NodeJS.ProcessEnv;
  beforeAll(async () => {
    api = await startRealApi(27_100);
    await api.client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
    await api.kubectl('apply', '-k', join(ROOT, 'manifests/beside-velero'));
    const parameters = ['create', 'token', 'longshore-node-agent'];
    const token = (await api.kubectl('-n', NAMESPACE, ...parameters)).trim();
    const text = await fs.readFile(api.kubeconfig, 'utf8');
    const kubeconfig = join(api.directory, 'agent-kubeconfig');
    await fs.writeFile(kubeconfig, text.replace(/token: "[^"]*"/, `token: "${token}"`));
    const { PATH, HOME } = process.env;
    environment = { PATH, HOME, NO_COLOR: '1', KUBECONFIG: kubeconfig };
    const common = { backupStorageLocation: 'default', operationTimeout: '10m0s' };
    await api.client.create(DATA_UPLOADS, {
      metadata: { name: 'ours', namespace: NAMESPACE },
      spec: {
        ...common,
        datamover: 'longshore',
        snapshotType: 'CSI',
        csiSnapshot: { volumeSnapshot: 's', storageClass: 'c' },
        sourceNamespace: 'app',
        sourcePVC: 'data',
      },
    });
    await api.client.create(DATA_DOWNLOADS, {
      metadata: { name: 'theirs', namespace: NAMESPACE },
      spec: {
        ...common,
        snapshotID: 'x',
        sourceNamespace: 'app',
        targetVolume: { namespace: 'app', pvc: 'data', pv: '' },
      },
    });
  }, WAIT_MS);
  afterAll(() => api[Symbol.asyncDispose]());

  const OURS =
    /DataUpload +ours +New .* a node-agent: none of DaemonSet longshore-node-agent is running/;
  const THEIRS =
    /DataDownload +theirs +New .* the data mover "velero", which no agent here serves \(longshore-node-agent serves longshore\)/;

  it(
    'it knows the DaemonSet, and what each operation waits for',
    { timeout: WAIT_MS },
    async () => {
      const { out, err } = await new Promise<{ out: string; err: string }>((resolve) => {
        execFile(BIN, ['node-agent', 'status'], { env: environment }, (_error, stdout, stderr) => {
          resolve({ out: stdout, err: stderr });
        });
      });
      expect(err).toBe('');
      expect(out).toMatch(OURS);
      expect(out).toMatch(THEIRS);
    },
  );

  it('it watches', { timeout: WAIT_MS }, async () => {
    const child = spawn(BIN, ['node-agent', 'status', '--watch'], {
      env: environment,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let out = '';
    let err = '';
    child.stdout.on('data', (part: Buffer) => (out += part.toString()));
    child.stderr.on('data', (part: Buffer) => (err += part.toString()));
    const ended = new Promise((resolve) => child.on('close', resolve));
    await expect.poll(() => out + err, { timeout: 60_000 }).toMatch(THEIRS);
    expect(out).toMatch(OURS);
    child.kill('SIGINT');
    expect(await ended).toBe(0);
    expect(err).toBe('');
  });

  it(
    'who may list sees the page, and who may browse a backup sees the files of that one',
    { timeout: WAIT_MS },
    async () => {
      // kubectl makes roles only for kinds that there are.
      const definition = join(ROOT, 'crds/server/velero.io_backups.yaml');
      await api.kubectl('apply', '--server-side', '-f', definition);
      await api.kubectl('wait', '--for=condition=Established', 'crd/backups.velero.io');
      await api.kubectl('apply', '-k', join(ROOT, 'manifests/status-page'));
      const inVelero = (...words: string[]): Promise<string> =>
        api.kubectl('-n', NAMESPACE, ...words);
      for (const name of ['visitor', 'reader', 'auditor']) {
        await inVelero('create', 'serviceaccount', name);
      }
      const bind = (name: string, role: string, account: string): Promise<string> => {
        const who = `--serviceaccount=${NAMESPACE}:${account}`;
        return inVelero('create', 'rolebinding', name, `--role=${role}`, who);
      };
      const page = 'longshore-status-page-visitor';
      await bind('visits', page, 'visitor');
      await bind('reads-page', page, 'reader');
      // As docs/status-page.md has it.
      await inVelero(
        ...['create', 'role', 'reads-nightly', '--verb=browse'],
        ...['--resource=backups.velero.io', '--resource-name=nightly'],
      );
      await bind('reads-nightly', 'reads-nightly', 'reader');
      // A user with read access to all objects still reads no data.
      const all = ['--verb=get,list,watch', '--resource=*.velero.io'];
      await inVelero('create', 'role', 'audits', ...all);
      await bind('audits', 'audits', 'auditor');

      const { signal } = new AbortController();
      const [sees, browses] = [
        clusterReviews(api.client, NAMESPACE),
        browseReviews(api.client, NAMESPACE),
      ];
      const verdictsOf = async (account: string): Promise<boolean[]> => {
        const words = ['create', 'token', account, '--audience=longshore-status-page'];
        const token = new Secret((await inVelero(...words)).trim());
        const user = await sees.userOf(token, signal);
        if (!user) throw new Error(`the token of ${account} is nobody's`);
        return [
          await sees.maySee(user, '', signal),
          await browses.maySee(user, 'nightly', signal),
          await browses.maySee(user, 'other', signal),
        ];
      };
      // The token of the API server is not for the page, nor that of the page for the API server.
      const ofApi = new Secret((await inVelero('create', 'token', 'visitor')).trim());
      expect(await sees.userOf(ofApi, signal)).toBeUndefined();
      const forApi = clusterReviews(api.client, NAMESPACE, []);
      expect(await forApi.userOf(ofApi, signal)).toMatchObject({
        username: 'system:serviceaccount:velero:visitor',
      });
      expect(await verdictsOf('visitor')).toEqual([true, false, false]);
      expect(await verdictsOf('reader')).toEqual([true, true, false]);
      expect(await verdictsOf('auditor')).toEqual([true, false, false]);
      await bind('browses', 'longshore-status-page-file-visitor', 'visitor');
      await expect
        .poll(() => verdictsOf('visitor'), { timeout: 60_000 })
        .toEqual([true, true, true]);
    },
  );
});
