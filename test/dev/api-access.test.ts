import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import type { IncomingHttpHeaders } from 'node:http';
import * as https from 'node:https';
import { connect } from 'node:net';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { DevEnvironment } from '../../src/cli/demo/dev-environment.ts';
import { ApiServer } from '../../src/dev/index.ts';
import { connectToCluster, PODS, waitFor } from '../../src/kube/index.ts';
import { peer } from '../support/real-api.ts';

interface Answer {
  code: number;
  headers: IncomingHttpHeaders;
  text: string;
}

interface Config {
  clusters: [{ cluster: { server: string; 'certificate-authority-data': string } }];
  users: [{ user: { token: string } }];
}

describe('the embedded API server', () => {
  let server: ApiServer;
  let config: Config;
  beforeAll(async () => {
    server = await ApiServer.start({ podLog: () => 'said' });
    config = JSON.parse(server.kubeconfig) as Config;
  });
  afterAll(() => server[Symbol.asyncDispose]());

  const token = (): string => config.users[0].user.token;
  const bearer = (): Record<string, string> => ({ authorization: `Bearer ${token()}` });

  const ask = (
    method: string,
    path: string,
    headers: Record<string, string> = {},
    body?: string,
  ): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const ca = Buffer.from(config.clusters[0].cluster['certificate-authority-data'], 'base64');
      const url = new URL(path, server.url);
      const options = { method, ca, headers, agent: false, servername: 'localhost' };
      const request = https.request(url, options, (response) => {
        let text = '';
        const done = (): void => {
          resolve({ code: response.statusCode ?? 0, headers: response.headers, text });
          response.destroy();
        };
        response.setEncoding('utf8');
        response.on('data', (part: string) => {
          text += part;
          // A watch goes on for ever.
          if (path.includes('watch=')) done();
        });
        response.on('end', done);
      });
      request.on('error', reject);
      request.end(body);
    });

  const MAPS = '/api/v1/namespaces/default/configmaps';
  const map = (name: string): string => JSON.stringify({ metadata: { name }, data: { a: 'b' } });
  const JSON_BODY = { 'content-type': 'application/json' };

  it('answers no verb, no watch, no log and no discovery without its token', async () => {
    const wrong = ['', 'Bearer', 'Bearer dev', `Bearer ${token()}x`, `Bearer ${token().slice(1)}`];
    const headers = [
      ...wrong.map((authorization) => ({ authorization })),
      { authorization: `Basic ${Buffer.from(`a:${token()}`).toString('base64')}` },
      {},
    ];
    const calls: [string, string, string?][] = [
      ['GET', MAPS],
      ['GET', `${MAPS}?watch=1`],
      ['GET', '/api/v1/namespaces/app/pods/p/log'],
      ['GET', '/api'],
      ['GET', '/apis'],
      ['GET', '/version'],
      ['GET', '/openapi/v3'],
      ['POST', MAPS, map('one')],
      ['PUT', `${MAPS}/one`, map('one')],
      ['PATCH', `${MAPS}/one`, '{}'],
      ['DELETE', `${MAPS}/one`],
      ['DELETE', MAPS],
      ['OPTIONS', MAPS],
    ];
    for (const more of headers) {
      for (const [method, path, body] of calls) {
        const { code, text } = await ask(method, path, { ...more, ...JSON_BODY }, body);
        expect(code, `${method} ${path}`).toBe(401);
        expect(JSON.parse(text)).toMatchObject({ kind: 'Status', reason: 'Unauthorized' });
        expect(text).not.toContain(token());
      }
    }
    expect(await ask('GET', '/healthz')).toMatchObject({ code: 200 });
    const { text } = await ask('GET', MAPS, bearer());
    expect(JSON.parse(text)).toMatchObject({ items: [] });
  });

  it('has another token and another key each time', async () => {
    await using other = await ApiServer.start();
    const its = JSON.parse(other.kubeconfig) as Config;
    expect(its.users[0].user.token).not.toBe(token());
    expect(token().length).toBeGreaterThanOrEqual(43);
    const name = 'certificate-authority-data';
    expect(its.clusters[0].cluster[name]).not.toBe(config.clusters[0].cluster[name]);
  });

  it('refuses names of other hosts, by which a web page reaches this machine', async () => {
    const { port } = new URL(server.url);
    for (const host of [
      'evil.example',
      `evil.example:${port}`,
      '127.0.0.1.evil.example',
      '[::2]',
    ]) {
      const { code, text } = await ask('GET', MAPS, { ...bearer(), host });
      expect(code, host).toBe(403);
      expect(text).toContain('only be reached by a name of this machine');
    }
    for (const host of [`127.0.0.1:${port}`, 'localhost', `LOCALHOST:${port}`, '[::1]:1']) {
      expect(await ask('GET', MAPS, { ...bearer(), host }), host).toMatchObject({ code: 200 });
    }
    expect(await ask('GET', '/healthz', { host: 'evil.example' })).toMatchObject({ code: 403 });
  });

  it('refuses what a browser sends on behalf of a page', async () => {
    for (const origin of ['http://evil.example', 'null', server.url]) {
      const headers = { ...bearer(), ...JSON_BODY, origin };
      expect(await ask('POST', MAPS, headers, map('page')), origin).toMatchObject({ code: 403 });
    }
    const { headers } = await ask('GET', MAPS, bearer());
    expect(Object.keys(headers).filter((name) => name.startsWith('access-control'))).toEqual([]);
  });

  it('refuses bodies of other types than those that it understands', async () => {
    const types = ['text/plain', 'application/x-www-form-urlencoded', 'application/jsonx', ''];
    for (const type of types) {
      const headers = { ...bearer(), ...(type !== '' && { 'content-type': type }) };
      const answer = await ask('POST', MAPS, headers, map('typed'));
      expect(answer, type).toMatchObject({ code: 415 });
    }
    const patch = { ...bearer(), 'content-type': 'application/x-patch+json' };
    expect(await ask('POST', MAPS, { ...bearer(), ...JSON_BODY }, map('typed'))).toMatchObject({
      code: 201,
    });
    expect(await ask('PATCH', `${MAPS}/typed`, patch, '[]')).toMatchObject({ code: 415 });
    for (const type of [
      'application/merge-patch+json',
      'application/strategic-merge-patch+json; charset=utf-8',
    ]) {
      const headers = { ...bearer(), 'content-type': type };
      const body = JSON.stringify({ data: { type } });
      expect(await ask('PATCH', `${MAPS}/typed`, headers, body), type).toMatchObject({ code: 200 });
    }
  });

  it('writes no object over another that a body names', async () => {
    for (const name of ['mine', 'other']) {
      await ask('POST', MAPS, { ...bearer(), ...JSON_BODY }, map(name));
    }
    const metadata = { name: 'other', uid: null, resourceVersion: null };
    const patch = { ...bearer(), 'content-type': 'application/merge-patch+json' };
    const body = JSON.stringify({ metadata, data: { a: 'changed' } });
    expect(await ask('PATCH', `${MAPS}/mine`, patch, body)).toMatchObject({ code: 200 });
    const dataOf = async (name: string): Promise<unknown> =>
      (JSON.parse((await ask('GET', `${MAPS}/${name}`, bearer())).text) as { data: unknown }).data;
    expect(await dataOf('other')).toEqual({ a: 'b' });
    expect(await dataOf('mine')).toEqual({ a: 'changed' });
    expect(await ask('PATCH', `${MAPS}/mine`, patch, 'null')).toMatchObject({ code: 400 });
  });

  it('refuses names that would be paths', async () => {
    for (const name of ['..', '.', 'a/b', '../../x']) {
      const answer = await ask('POST', MAPS, { ...bearer(), ...JSON_BODY }, map(name));
      expect(answer, name).toMatchObject({ code: 422 });
      const path = `/api/v1/namespaces/app/pods/${encodeURIComponent(name).replace(/^\.+$/, '%2e.')}/log`;
      expect((await ask('GET', path, bearer())).code, name).not.toBe(200);
    }
  });

  it('is told from a server that took its place by its certificate', async () => {
    await using other = await ApiServer.start();
    const mixed = JSON.parse(server.kubeconfig) as Config;
    mixed.clusters[0].cluster.server = other.url;
    const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-access-'));
    const kubeconfig = join(directory, 'kubeconfig');
    await fs.writeFile(kubeconfig, JSON.stringify(mixed));
    const client = connectToCluster({ kubeconfig, userAgent: 'access/1' });
    const error: unknown = await client
      .list(PODS, { namespace: 'app' })
      .catch((thrown: unknown) => thrown);
    expect(String(error)).toMatch(/cannot reach the API server: self-signed certificate/);
    client.close();
    await fs.rm(directory, { recursive: true });
  });

  it('listens on the loopback device only', async () => {
    const { hostname, port } = new URL(server.url);
    expect(hostname).toBe('127.0.0.1');
    const others = Object.values(networkInterfaces())
      .flatMap((addresses) => addresses ?? [])
      .filter(({ internal, family }) => !internal && family === 'IPv4');
    for (const { address } of others) {
      const reached = await new Promise<boolean>((resolve) => {
        const socket = connect(Number(port), address, () => resolve(true));
        socket.on('error', () => resolve(false));
        socket.on('close', () => socket.destroy());
      });
      expect(reached, address).toBe(false);
    }
  });
});

describe('the development cluster', () => {
  let directory: string;
  let environment: DevEnvironment;
  const kubectl = peer('kubectl');
  beforeAll(async () => {
    directory = await fs.mkdtemp(join(tmpdir(), 'longshore-access-'));
    // As an earlier run with other habits may have left it.
    await fs.writeFile(join(directory, 'kubeconfig'), 'old', { mode: 0o644 });
    environment = await DevEnvironment.start({
      directory,
      nodes: ['node-1'],
      // The stand-in for the data mover prints its environment.
      command: ['/usr/bin/env'],
      environment: { HOME: join(directory, 'home'), PATH: '/usr/bin:/bin' },
      logger: silentLogger,
    });
  });
  afterAll(async () => {
    await environment[Symbol.asyncDispose]();
    await fs.rm(directory, { recursive: true, force: true });
  });

  it('keeps its token in a file that only its user can read', async () => {
    const { mode } = await fs.stat(environment.kubeconfig);
    expect(mode & 0o777).toBe(0o600);
  });

  it('gives processes of pods the variables of data movers only', async () => {
    const names = ['NODE_OPTIONS', 'LD_PRELOAD', 'PATH', 'XDG_CACHE_HOME', 'AWS_CONFIG_FILE'];
    await environment.client.create(PODS, {
      metadata: { name: 'variables', namespace: 'default' },
      spec: {
        nodeName: 'node-1',
        containers: [
          {
            name: 'main',
            image: 'longshore',
            command: ['/velero'],
            env: [
              ...names.map((name) => ({ name, value: '/of/the/pod' })),
              { name: 'NODE_NAME', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } },
              { name: 'LONGSHORE_UPLOAD_LIMIT', value: '5MiB' },
              { name: 'LONGSHORE_TERMINATION_LOG', value: '/of/the/pod' },
            ],
          },
        ],
      },
    });
    const ref = { namespace: 'default', name: 'variables' };
    await waitFor(
      environment.client,
      PODS,
      ref,
      (pod) => (pod?.status?.phase === 'Succeeded' ? pod : undefined),
      { timeoutMs: 60_000 },
    );
    const log = environment.cluster.podLog('variables') ?? '';
    const given = log.split('\n').map((line) => line.split('=')[0] ?? '');
    expect(given).toContain('LONGSHORE_UPLOAD_LIMIT');
    expect(log).toContain('NODE_NAME=node-1');
    expect(log).not.toMatch(/^[A-Z_]+=\/of\/the\/pod$/m);
    expect(given).not.toContain('NODE_OPTIONS');
    expect(log).toMatch(/left out of the environment: .*NODE_OPTIONS/);
  });

  it.skipIf(!existsSync(kubectl))('works with a real kubectl, for whom has the token', async () => {
    const run = async (...parameters: string[]): Promise<string> => {
      const env = { ...process.env, KUBECONFIG: environment.kubeconfig, HOME: directory };
      const { stdout } = await promisify(execFile)(kubectl, parameters, { env });
      return stdout;
    };
    const file = join(directory, 'map.json');
    const object = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'm' } };
    await fs.writeFile(file, JSON.stringify({ ...object, data: { a: 'b' } }));
    expect(await run('apply', '-f', file)).toContain('configmap/m created');
    await fs.writeFile(file, JSON.stringify({ ...object, data: { a: 'c' } }));
    expect(await run('apply', '-f', file)).toContain('configmap/m configured');
    expect(await run('get', 'configmap', 'm', '-o', 'jsonpath={.data.a}')).toBe('c');
    expect(await run('patch', 'configmap', 'm', '--type=merge', '-p', '{"data":{"a":"d"}}')).toBe(
      'configmap/m patched\n',
    );
    expect(await run('label', 'configmap', 'm', 'x=y')).toContain('labeled');
    expect(await run('get', 'datauploads', '-A')).toBe('');
    expect(await run('logs', 'variables')).toContain('NODE_NAME=node-1');
    const watched = await run('get', 'configmap', 'm', '-w', '--request-timeout=3s', '-o', 'name')
      .then((stdout) => ({ stdout }))
      .catch((error: unknown) => error as { stdout: string });
    expect(watched.stdout).toContain('configmap/m');
    expect(await run('delete', 'configmap', 'm')).toContain('deleted');
    const other = run('--token=guessed', 'get', 'configmaps');
    await expect(other).rejects.toThrow(/Unauthorized|must be logged in/);
  });
});
