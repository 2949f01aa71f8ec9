import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse, stringify } from 'yaml';
import { assetsOf } from '../../../src/cli/install/assets.ts';
import { isOfCluster, kustomized, type Manifest } from '../../../src/cli/install/kustomize.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DATA_UPLOADS,
  DEPLOYMENTS,
  NAMESPACES,
  SECRETS,
} from '../../../src/kube/index.ts';
import { runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { sharedPackage } from '../../support/package.ts';
import { CHART, hasHelm, helm, parseManifests, renderOverlay } from '../../support/manifests.ts';
import { QUIRKY_ENVIRONMENT, QUIRKY_REGION, startQuirkyS3 } from '../../support/quirky-s3.ts';
import { hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';
import { serverCrds } from '../../support/server-crds.ts';

const ROOT = new URL('../../../', import.meta.url).pathname;
const work = tempDirectory('install');
const CREDENTIALS = join(work, 'credentials');
fs.writeFileSync(CREDENTIALS, '[default]\n');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const STORAGE = ['--provider', 'aws', '--bucket', 'b', '--secret-file', CREDENTIALS];
const ALL = ['install', '--image', 'registry.example.com/longshore:1', ...STORAGE];
const FINALIZER = 'velero.io/data-upload-download-finalizer';

describe('what would be installed', () => {
  it('is printed, and can be read back', async () => {
    const config = ['--backup-location-config', 'region=minio, s3Url=http://minio:9000?a=b'];
    const { code, out } = await runHere(...ALL, ...config, '-n', 'backup', '--dry-run');
    expect(code).toBe(0);
    const all = parseManifests(out) as unknown as Manifest[];
    const one = (kind: string, name: string): Manifest => {
      const found = all.find((each) => each.kind === kind && each.metadata.name === name);
      if (!found) throw new Error(`no ${kind} ${name}`);
      return found;
    };
    expect(one('BackupStorageLocation', 'default').spec).toEqual({
      provider: 'aws',
      default: true,
      objectStorage: { bucket: 'b' },
      config: { region: 'minio', s3Url: 'http://minio:9000?a=b' },
    });
    expect(one('Secret', 'cloud-credentials').data).toEqual({
      cloud: Buffer.from('[default]\n').toString('base64'),
    });
    for (const [kind, name] of [
      ['Deployment', 'longshore-server'],
      ['DaemonSet', 'node-agent'],
    ] as const) {
      const { spec } = one(kind, name) as {
        spec?: { template: { spec: { containers: object[] } } };
      };
      expect(spec?.template.spec.containers[0]).toMatchObject({
        image: 'registry.example.com/longshore:1',
      });
    }
    expect(new Set(all.map(({ metadata }) => metadata.namespace))).toEqual(
      new Set([undefined, 'backup']),
    );
    const subjects = all.flatMap((each) => (each.subjects ?? []) as { namespace?: string }[]);
    expect(subjects.length).toBeGreaterThan(5);
    expect(subjects.every(({ namespace }) => namespace === 'backup')).toBe(true);
    // The command watches an object after the objects that it needs.
    const kinds = all.map(({ kind }) => kind);
    expect(kinds.lastIndexOf('CustomResourceDefinition')).toBeLessThan(kinds.indexOf('Namespace'));
    expect(kinds.indexOf('Deployment')).toBeGreaterThan(kinds.indexOf('BackupStorageLocation'));
  });

  it('names further Secrets of locations in each Role that reads those of locations', async () => {
    const flag = '--location-secrets=second, third,cloud-credentials';
    const { code, out } = await runHere(...ALL, flag, '--dry-run');
    expect(code).toBe(0);
    const roles = parseManifests(out).filter(({ kind }) => kind === 'Role');
    const named = roles.flatMap(({ metadata, rules = [] }) =>
      rules.flatMap((rule) => {
        const { resourceNames = [] } = rule as { resourceNames?: string[] };
        return resourceNames.includes('cloud-credentials') ? [[metadata.name, resourceNames]] : [];
      }),
    );
    const all = ['velero-repo-credentials', 'cloud-credentials', 'second', 'third'];
    expect(named.sort()).toEqual(
      ['data-mover', 'repo-maintenance', 'server'].map((name) => [`longshore-${name}`, all]),
    );
  });

  it('is the same from the installed program', async () => {
    const words = [...ALL, '--dry-run'];
    const installed = execFileSync(join(sharedPackage(), 'bin/longshore'), words);
    expect(installed.toString()).toBe((await runHere(...words)).out);
  }, 120_000);

  it('is a list with -o json, and has the features that are asked for', async () => {
    const { out } = await runHere(...ALL, '--features', '', '--dry-run', '-o', 'json');
    const { items } = JSON.parse(out) as { items: Manifest[] };
    const server = items.find(({ kind }) => kind === 'Deployment');
    expect(JSON.stringify(server)).not.toContain('--features');
    const told = await runHere(...ALL, '--features', 'EnableX', '--dry-run', '-o', 'json');
    expect(told.out).toContain('--features=EnableX');
  });

  it.each([
    [['install'], 'give --secret-file with the credentials'],
    [['install', '--no-secret'], 'give --provider and --bucket'],
    [['install', '--no-secret', '--provider', 'aws'], 'give --bucket'],
    [['install', '--no-secret', '--provider', 'aws', '--bucket', 'a/b'], 'has a "/"'],
    [['install', '--no-secret', '--provider', 'awsx', '--bucket', 'b'], 'awsx is not known'],
    [['install', '--no-secret', '--provider', 'x.org/y', '--bucket', 'b'], 'give --image'],
    [
      ['install', '--no-secret', '--no-default-backup-location', '--bucket', 'b'],
      'goes with neither',
    ],
    [['install', '--no-secret', '--secret-file', CREDENTIALS], 'not both'],
    [['install', '--secret-file', '/no/such'], '--secret-file /no/such: there is no such file'],
    [[...ALL, '--backup-location-config', 'region'], 'has "region", which is not key=value'],
    [[...ALL, '--cacert', '/no/such'], '--cacert /no/such: there is no such file'],
    [['uninstall'], 'give --force where nobody can be asked'],
    [['uninstall', '--force', '--cancel-timeout', 'x'], '--cancel-timeout "x" is not a duration'],
  ])('%j says what is wrong', async (words, sentence) => {
    const { code, out, err } = await runHere(...words);
    expect(err).toContain(sentence);
    expect(out).toBe('');
    expect(code).toBe(2);
  });

  it('refuses manifests that it would read otherwise than kubectl', () => {
    const folder = join(work, 'overlay');
    fs.mkdirSync(folder);
    const put = (kustomization: object): void => {
      fs.writeFileSync(join(folder, 'kustomization.yaml'), stringify(kustomization));
    };
    put({ resources: [], namePrefix: 'x-' });
    expect(() => kustomized(folder)).toThrow('has namePrefix, which is not known here');
    put({ resources: [], patches: [{ target: { kind: 'A', name: 'b' }, patch: '[]' }] });
    expect(() => kustomized(folder)).toThrow('changes A b, which is not there');
  });
});

describe.skipIf(!hasHelm())('definitions of kinds that a server looks at', () => {
  it('are the structure of those of Velero', () => {
    const folder = new URL('../../../crds/server/', import.meta.url);
    const expected = serverCrds();
    expect(fs.readdirSync(folder).sort()).toEqual([...expected.keys()]);
    expect(expected.size).toBe(8);
    for (const [name, text] of expected) {
      const how = 'run npx node test/support/server-crds.ts';
      expect(fs.readFileSync(new URL(name, folder), 'utf8'), how).toBe(text);
    }
  });
});

describe.skipIf(!hasRealApi())('install and uninstall, on a real API server', () => {
  let api: RealApi;
  const run = (...words: string[]) => runHere(...words, '--kubeconfig', api.kubeconfig);
  const crds = async (): Promise<string[]> =>
    (await api.kubectl('get', 'crd', '-o', 'name'))
      .split('\n')
      .filter((name) => name.includes('velero.io'));
  const uninstall = (namespace: string, ...flags: string[]) =>
    run('uninstall', '--force', '--cancel-timeout', '1s', '-n', namespace, ...flags);

  beforeAll(async () => {
    api = await startRealApi(29_300);
    // As in a cluster that has never seen Velero.
    for (const name of await crds()) await api.kubectl('delete', name);
  }, 120_000);
  afterAll(async () => {
    await api[Symbol.asyncDispose]();
  });

  it('puts together what kubectl does', async () => {
    const theirs = parseManifests(await renderOverlay(api, 'whole')) as unknown as Manifest[];
    const ours = [...assetsOf(ROOT).objects];
    const keyOf = ({ kind, metadata }: Manifest): string => `${kind} ${metadata.name}`;
    expect(ours.map(keyOf).sort()).toEqual(theirs.map(keyOf).sort());
    for (const each of theirs) {
      // kubectl gives policies a namespace, which the API server drops.
      if (isOfCluster(each)) delete each.metadata.namespace;
      const own = ours.find((one) => keyOf(one) === keyOf(each));
      // The same text, in any order of its fields.
      expect(isDeepStrictEqual(own, parse(stringify(each))), keyOf(each)).toBe(true);
    }
  });

  it('waits until the server is ready, and tells whether it can use the location', async () => {
    let isOver = false;
    const installed = run(...ALL, '-n', 'waits', '--wait').finally(() => (isOver = true));
    const message = 'BackupStorageLocation "default" is unavailable: no such bucket';
    const location = { namespace: 'waits', name: 'default' };
    const seen = { status: { phase: 'Unavailable', message } };
    const patched = async (): Promise<boolean> => {
      const found = await api.client
        .find(BACKUP_STORAGE_LOCATIONS, location)
        .catch(() => undefined);
      if (found) await api.client.patch(BACKUP_STORAGE_LOCATIONS, location, seen);
      return found !== undefined;
    };
    await expect.poll(patched).toBe(true);
    const server = { namespace: 'waits', name: 'longshore-server' };
    await expect.poll(() => api.client.find(DEPLOYMENTS, server)).toBeDefined();
    await api.client.create(SECRETS, {
      metadata: { namespace: 'waits', name: 'velero-repo-credentials' },
      data: { 'repository-password': Buffer.from('random').toString('base64') },
    });
    const ready = { replicas: 2, readyReplicas: 2, availableReplicas: 2 };
    // The Deployment controller counts pods, and there are none: patch the status again and again.
    while (!isOver) {
      await api.kubectl(
        ...['patch', 'deployment', 'longshore-server', '-n', 'waits', '--subresource=status'],
        ...['--type=merge', '-p', JSON.stringify({ status: ready })],
      );
    }
    const { code, err, out } = await installed;
    expect([err, code]).toEqual(['', 0]);
    expect(out).toContain(`${message}\n`);
    expect(out).toMatch(/Secret velero-repo-credentials: (created by the server|there already)/);
    expect((await uninstall('waits')).code).toBe(0);
    await api.client.delete(NAMESPACES, { name: 'waits' });
  });

  it('makes all of it, twice too, and leaves nothing behind, whatever was under way', async () => {
    for (const time of ['first', 'again']) {
      const { code, err, out } = await run(...ALL, '-n', 'whole');
      expect(err, time).toBe('');
      expect(out).toContain('Longshore is installed in namespace whole');
      expect(code).toBe(0);
    }
    expect((await crds()).length).toBe(13);
    await api.client.create(BACKUPS, {
      metadata: { name: 'b', namespace: 'whole', finalizers: [FINALIZER] },
      spec: {},
      status: { phase: 'InProgress' },
    });
    await api.client.create(DATA_UPLOADS, {
      metadata: { name: 'u', namespace: 'whole', finalizers: [FINALIZER] },
      spec: {
        backupStorageLocation: 'default',
        operationTimeout: '10m',
        snapshotType: 'CSI',
        sourceNamespace: 'app',
        sourcePVC: 'data',
        csiSnapshot: null,
      },
      status: { phase: 'InProgress' },
    } as never);
    const { code, out, err } = await uninstall('whole');
    expect(err).toBe('');
    expect(code).toBe(0);
    expect(out).toContain('2 backups and volumes are under way, and are told to end');
    expect(out).toContain('not ended, and removed all the same: Backup b, DataUpload u');
    expect(out).toContain('Namespace whole: removed');
    expect(await api.client.find(NAMESPACES, { name: 'whole' })).toBeUndefined();
    expect(await crds()).toEqual([]);
    const left = await api.kubectl('get', 'clusterrole,clusterrolebinding', '-o', 'name');
    expect(left).not.toContain('longshore');
    const again = await uninstall('whole');
    expect(again.code).toBe(0);
    expect(again.out).toContain('Longshore is removed.');
  }, 240_000);

  it('creates a random repository password once, says where it is, and keeps it through an uninstall', async () => {
    // A bucket that answers on this machine, and is empty.
    await using store = await startQuirkyS3();
    const credentials = join(work, 'quirky');
    const { AWS_ACCESS_KEY_ID: id, AWS_SECRET_ACCESS_KEY: key } = QUIRKY_ENVIRONMENT;
    const lines = ['[default]', `aws_access_key_id=${id}`, `aws_secret_access_key=${key}`];
    fs.writeFileSync(credentials, `${lines.join('\n')}\n`);
    const config = `region=${QUIRKY_REGION},s3ForcePathStyle=true,s3Url=${store.endpoint}`;
    const words = [
      ...['install', '--image', 'i', '--provider', 'aws', '--bucket', 'backups', '-n', 'secret'],
      ...['--secret-file', credentials, '--backup-location-config', config],
    ];
    const { code, err, out } = await run(...words);
    expect([err, code]).toEqual(['', 0]);
    expect(out).toContain('Secret velero-repo-credentials: created, with a random password');
    expect(out).toContain(
      'kubectl -n secret get secret velero-repo-credentials longshore-archive-keys --ignore-not-found -o yaml',
    );
    const ref = { namespace: 'secret', name: 'velero-repo-credentials' };
    const { data } = await api.client.get(SECRETS, ref);
    const password = Buffer.from(data?.['repository-password'] ?? '', 'base64').toString();
    expect(password).toMatch(/^[\w-]{43}$/);
    expect(out).not.toContain(password);
    const again = await run(...words);
    expect(again.out).toContain('Secret velero-repo-credentials: there already, and left as it is');
    const gone = await uninstall('secret');
    expect(gone.code).toBe(0);
    expect(gone.out).toContain(
      'Namespace secret: left, because without its Secrets (velero-repo-credentials)',
    );
    expect((await api.client.get(SECRETS, ref)).data).toEqual(data);
    await api.client.delete(NAMESPACES, { name: 'secret' });
  }, 240_000);

  it('leaves the password to the server where this machine cannot look into the bucket', async () => {
    const { code, out } = await run(
      ...['install', '--image', 'i', '--provider', 'fs', '--bucket', 'b', '-n', 'of-nodes'],
      ...['--backup-location-config', `fspath=${work}`],
    );
    expect(code).toBe(0);
    expect(out).toContain('Secret velero-repo-credentials: the server will create it');
    expect(out).toContain('its directory is on the nodes');
    const ref = { namespace: 'of-nodes', name: 'velero-repo-credentials' };
    expect(await api.client.find(SECRETS, ref)).toBeUndefined();
    const data = { 'repository-password': Buffer.from('static-passw0rd').toString('base64') };
    await api.client.create(SECRETS, { metadata: ref, data });
    const again = await run(
      'install',
      '--image',
      'i',
      '--no-secret',
      '--no-default-backup-location',
      '-n',
      'of-nodes',
    );
    expect(again.out).toMatch(/everybody knows this password.*change-password-all/);
    expect((await uninstall('of-nodes')).out).toContain('Namespace of-nodes: removed');
  }, 240_000);

  it('leaves what others have made', async () => {
    await api.client.create(NAMESPACES, { metadata: { name: 'theirs' } });
    await api.client.create(NAMESPACES, { metadata: { name: 'other' } });
    const made = await run(...ALL, '-n', 'theirs');
    expect(made.out).toContain('Namespace theirs: there already, and left as it is');
    await api.client.create(BACKUPS, {
      metadata: { name: 'b', namespace: 'other' },
      spec: {},
    });
    const { code, out } = await uninstall('theirs');
    expect(code).toBe(0);
    expect(out).toContain('Namespace theirs: not made by longshore install, and left as it is');
    expect(out).toContain('backups.velero.io: namespace other has objects of it, and it is left');
    expect(await crds()).toEqual([
      'customresourcedefinition.apiextensions.k8s.io/backups.velero.io',
    ]);
    expect(await api.client.find(NAMESPACES, { name: 'theirs' })).toBeDefined();
    expect(await api.client.find(BACKUPS, { name: 'b', namespace: 'other' })).toBeDefined();
  }, 240_000);

  it('keeps definitions for Velero, when it is told to', async () => {
    await run(...ALL, '-n', 'back');
    const { out } = await uninstall('back', '--keep-crds');
    expect(out).not.toContain('CustomResourceDefinition');
    expect((await crds()).length).toBe(13);
  }, 240_000);

  it('is refused where the server of Velero runs, and changes nothing', async () => {
    await api.client.create(NAMESPACES, { metadata: { name: 'velero' } });
    const labels = { deploy: 'velero' };
    await api.client.create(DEPLOYMENTS, {
      metadata: { name: 'velero', namespace: 'velero' },
      spec: {
        replicas: 0,
        selector: { matchLabels: labels },
        template: { metadata: { labels }, spec: { containers: [{ name: 'v', image: 'v' }] } },
      },
    } as never);
    const { code, err } = await run(...ALL);
    expect(code).toBe(1);
    expect(err).toContain('namespace velero has a Velero server (Deployment velero)');
    expect(await api.kubectl('-n', 'velero', 'get', 'serviceaccount', '-o', 'name')).not.toContain(
      'longshore',
    );
  });

  it('ends and takes nothing from a Velero of the namespace when it is uninstalled there', async () => {
    const finalizers = ['example.com/theirs'];
    const ref = { name: 'theirs', namespace: 'velero' };
    await api.client.create(BACKUPS, {
      metadata: { ...ref, finalizers },
      spec: {},
      status: { phase: 'InProgress' },
    });
    const { code, out } = await uninstall('velero', '--keep-crds');
    expect(code).toBe(0);
    expect(out).toContain(
      'has a Velero server (Deployment velero): what is under way is left to it',
    );
    const { metadata } = await api.client.get(BACKUPS, ref);
    expect(metadata.finalizers).toEqual(finalizers);
    expect(metadata.annotations ?? {}).toEqual({});
    expect(
      await api.client.find(DEPLOYMENTS, { name: 'velero', namespace: 'velero' }),
    ).toBeDefined();
    await api.client.patch(BACKUPS, ref, { metadata: { finalizers: null } });
  });

  it('says who does not answer', async () => {
    const config = join(work, 'nobody');
    const text = fs.readFileSync(api.kubeconfig, 'utf8');
    fs.writeFileSync(config, text.replace(/https:\/\/[\w.]+:\d+/, 'https://127.0.0.1:1'));
    const { code, err } = await runHere(...ALL, '--kubeconfig', config);
    expect(code).not.toBe(0);
    expect(err).toMatch(/127\.0\.0\.1:1/);
  }, 120_000);
});

describe.skipIf(!hasHelm())('on a cluster without admission policies', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(31_200, { hasPolicies: false });
  }, 120_000);
  afterAll(async () => {
    await api[Symbol.asyncDispose]();
  });

  it('install works, and says what is missing', async () => {
    const { code, out, err } = await runHere(...ALL, '--kubeconfig', api.kubeconfig);
    expect([err, code]).toEqual(['', 0]);
    expect(out).toContain('DaemonSet node-agent: applied');
    expect(out).toContain('WARNING: this cluster has no ValidatingAdmissionPolicy');
    expect(out).not.toContain('ValidatingAdmissionPolicy longshore-node-agent-pods');
  });

  it('the chart works, and says what is missing', async () => {
    await api.client.create(NAMESPACES, { metadata: { name: 'chart' } });
    const said = helm(api, 'install', 'longshore', CHART, '-n', 'chart');
    expect(said).toContain('This cluster has no ValidatingAdmissionPolicy');
    expect(said).toContain('a holder of their token can take over the cluster');
  });
});
