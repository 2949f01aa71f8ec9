import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import * as http from 'node:http';
import * as https from 'node:https';
import * as net from 'node:net';
import { basename, join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { makeCertificate, systemClock } from '../../src/base/index.ts';
import { Credentials, type Login } from '../../src/kube/client/credentials.ts';
import type { Access } from '../../src/kube/client/kubeconfig.ts';
import { connectToCluster, type KubeClient, NAMESPACES } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';

interface Asked {
  readonly path: string;
  readonly headers: http.IncomingHttpHeaders;
  /** Names and values as they came. */
  readonly raw: readonly string[];
  /** The common name of the client's certificate. */
  readonly client: string | undefined;
}

const scratch = tempDirectory('kubeconfig');
const own = makeCertificate(Date.now());
const login = makeCertificate(Date.now(), 'exec-user');
const asked: Asked[] = [];
const opened: KubeClient[] = [];
/** Values of Authorization that the server refuses. */
const refused = new Set<string>();
let secure: https.Server;
let plain: http.Server;
let proxy: http.Server;
let proxied = 0;

const base64 = (text: string): string => Buffer.from(text).toString('base64');
const portOf = (server: net.Server): number => (server.address() as net.AddressInfo).port;

function note(request: http.IncomingMessage): boolean {
  const { url = '', headers, rawHeaders: raw, socket } = request;
  const peer = 'getPeerCertificate' in socket && (socket as TLSSocket).getPeerCertificate();
  asked.push({ path: url, headers, raw, client: (peer || undefined)?.subject?.CN as string });
  return !refused.has(headers.authorization ?? '');
}

const answer: http.RequestListener = (request, response) => {
  const isAllowed = note(request);
  response.statusCode = isAllowed ? 200 : 401;
  response.setHeader('content-type', 'application/json');
  const metadata = { name: 'a', resourceVersion: '2' };
  const object = { apiVersion: 'v1', kind: 'Namespace', metadata };
  const isWatch = isAllowed && (request.url ?? '').includes('watch=1');
  response.end(isWatch ? `${JSON.stringify({ type: 'ADDED', object })}\n` : '{}');
};

/** Every command succeeds, without an output. */
function upgrade(request: http.IncomingMessage, socket: Duplex): void {
  socket.on('error', () => undefined);
  if (!note(request)) {
    socket.end('HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}');
    return;
  }
  const accept = createHash('sha1')
    .update(`${request.headers['sec-websocket-key'] ?? ''}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
    .digest('base64');
  const end = Buffer.from('\u0003{"status":"Success"}');
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n`,
  );
  socket.write(Buffer.concat([Buffer.from([0x82, end.length]), end]));
}

const listen = (server: net.Server): Promise<void> =>
  new Promise((resolve) => server.listen(0, '0.0.0.0', resolve));

beforeAll(async () => {
  const { certificate: cert, key } = own;
  const tls = { cert, key, ca: login.certificate, requestCert: true, rejectUnauthorized: false };
  secure = https.createServer(tls, answer).on('upgrade', upgrade);
  plain = http.createServer(answer).on('upgrade', upgrade);
  proxy = http.createServer();
  proxy.on('connect', (request: http.IncomingMessage, socket: net.Socket) => {
    proxied++;
    const target = net.connect(Number(request.url?.split(':').at(-1)), '127.0.0.1', () => {
      socket.write('HTTP/1.1 200 OK\r\n\r\n');
      socket.pipe(target).pipe(socket);
    });
    for (const each of [socket, target]) {
      each.on('error', () => {
        socket.destroy();
        target.destroy();
      });
    }
  });
  for (const server of [secure, plain, proxy]) await listen(server);
});
beforeEach(() => {
  asked.length = 0;
  refused.clear();
  proxied = 0;
});
afterEach(() => {
  vi.unstubAllEnvs();
  for (const client of opened.splice(0)) client.close();
});
afterAll(() => {
  for (const server of [secure, plain, proxy]) {
    server.closeAllConnections();
    server.close();
  }
  fs.rmSync(scratch, { recursive: true, force: true });
});

const put = (name: string, content: string | object, mode = 0o600): string => {
  const path = join(scratch, name);
  fs.mkdirSync(join(path, '..'), { recursive: true });
  fs.writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content), { mode });
  return path;
};
const configOf = (user: object | undefined, cluster: object): object => ({
  apiVersion: 'v1',
  kind: 'Config',
  'current-context': 'c',
  clusters: [{ name: 'c', cluster }],
  users: [{ name: 'u', user }],
  contexts: [{ name: 'c', context: { cluster: 'c', ...(user && { user: 'u' }) } }],
});
const secureCluster = (): object => ({
  server: `https://127.0.0.1:${portOf(secure)}`,
  'certificate-authority-data': base64(own.certificate),
});
const plainCluster = (): object => ({
  server: `http://127.0.0.1:${portOf(plain)}`,
  'insecure-skip-tls-verify': true,
});
function connected(kubeconfig?: string): KubeClient {
  const client = connectToCluster({ kubeconfig, userAgent: 'test' });
  opened.push(client);
  return client;
}
const connect = (user: object | undefined, cluster: object = plainCluster()): KubeClient =>
  connected(put('kubeconfig', configOf(user, cluster)));
const ask = (client: KubeClient): Promise<unknown> =>
  client.raw({ method: 'GET', path: '/version' });
async function watch(client: KubeClient): Promise<string[]> {
  const seen: string[] = [];
  for await (const { type } of client.watch(NAMESPACES, { resourceVersion: '1' })) seen.push(type);
  return seen;
}
const run = (client: KubeClient): Promise<unknown> =>
  client.exec({ namespace: 'n', pod: 'p', container: 'c', command: ['true'] });

describe('plain HTTP', () => {
  const user = {
    token: 'secret',
    username: undefined,
    'as-groups': [],
    'client-certificate-data': base64('c'),
    'client-key-data': base64('k'),
  };
  const loginTo = (cluster: object): Promise<Login> =>
    new Credentials({ cluster, user } as unknown as Access, systemClock).login();

  it.each<[string, boolean, boolean]>([
    ['http://api.example:8080', true, false],
    ['http://api.example:8080', false, false],
    ['http://127.0.0.1.example:8080', true, false],
    ['http://10.0.0.1:8080', true, false],
    ['http://127.0.0.1:8080', true, true],
    ['http://[::1]:8080', true, true],
    ['http://localhost:8080', true, true],
    ['http://localhost:8080', false, false],
    ['https://api.example:6443', false, true],
  ])('to %s, insecure-skip-tls-verify %s: carries credentials %s', async (...row) => {
    const [server, isInsecure, isSent] = row;
    const { headers, tls } = await loginTo({ server, 'insecure-skip-tls-verify': isInsecure });
    expect('Authorization' in headers).toBe(isSent);
    expect(tls.key !== undefined).toBe(isSent);
  });
});

describe('impersonation', () => {
  const user = {
    token: 't',
    as: 'jürgen',
    'as-uid': '7',
    'as-groups': ['admins', 'people'],
    'as-user-extra': { 'Example.com/Scope%': ['a', 'b'] },
  };

  it('is a part of requests, watches and commands', async () => {
    const client = connect(user);
    await ask(client);
    await watch(client);
    await run(client);
    expect(asked.map(({ path }) => path.replace(/\?.*/, ''))).toEqual([
      '/version',
      '/api/v1/namespaces',
      '/api/v1/namespaces/n/pods/p/exec',
    ]);
    for (const { raw } of asked) {
      const pairs = raw.flatMap((name, i) =>
        i % 2 === 0 && name.startsWith('Impersonate') ? [`${name}: ${raw[i + 1] ?? ''}`] : [],
      );
      expect(pairs.map((pair) => Buffer.from(pair, 'latin1').toString('utf8'))).toEqual([
        'Impersonate-User: jürgen',
        'Impersonate-Uid: 7',
        'Impersonate-Group: admins',
        'Impersonate-Group: people',
        'Impersonate-Extra-example.com%2Fscope%25: a',
        'Impersonate-Extra-example.com%2Fscope%25: b',
      ]);
    }
  });

  it('of groups without a user is refused in words', () => {
    expect(() => connect({ 'as-groups': ['admins'] })).toThrow(/but no user: set "as"$/);
  });
});

describe('an exec plugin', () => {
  /** Records its input, and prints `answer`. $n counts its runs. */
  const plugin = (answer: object | string, more: object = {}): object => {
    const text = typeof answer === 'string' ? answer : JSON.stringify(answer);
    fs.rmSync(join(scratch, 'runs'), { force: true });
    const script = `#!/bin/sh
cd "${scratch}"
echo x >> runs
n=$(wc -l < runs)
printf %s "$KUBERNETES_EXEC_INFO" > info
echo "$1 $OWN $(cat)" > told
cat <<END
${text}
END
`;
    put('plugin', script, 0o700);
    const apiVersion = 'client.authentication.k8s.io/v1';
    return { exec: { apiVersion, command: './plugin', interactiveMode: 'Never', ...more } };
  };
  const credential = (status: object): object => ({
    kind: 'ExecCredential',
    apiVersion: 'client.authentication.k8s.io/v1',
    status,
  });
  const runs = (): number => fs.readFileSync(join(scratch, 'runs'), 'utf8').split('\n').length - 1;
  const tokens = (): unknown[] => asked.map(({ headers }) => headers.authorization);

  it('gets its arguments, its environment and no stdin, and is run once', async () => {
    const more = { args: ['one'], env: [{ name: 'OWN', value: 'two' }] };
    const client = connect(plugin(credential({ token: 't$n' }), more));
    await ask(client);
    await ask(client);
    expect(tokens()).toEqual(['Bearer t1', 'Bearer t1']);
    expect(fs.readFileSync(join(scratch, 'told'), 'utf8')).toBe('one two \n');
    expect(JSON.parse(fs.readFileSync(join(scratch, 'info'), 'utf8'))).toEqual({
      kind: 'ExecCredential',
      apiVersion: 'client.authentication.k8s.io/v1',
      spec: { interactive: false },
    });
  });

  it('learns about the cluster with provideClusterInfo', async () => {
    put('ca.pem', own.certificate);
    const cluster = {
      server: `https://127.0.0.1:${portOf(secure)}`,
      'certificate-authority': 'ca.pem',
      'tls-server-name': 'localhost',
      extensions: [{ name: 'client.authentication.k8s.io/exec', extension: { audience: 'x' } }],
    };
    const more = { provideClusterInfo: true };
    await ask(connect(plugin(credential({ token: 't' }), more), cluster));
    const { spec } = JSON.parse(fs.readFileSync(join(scratch, 'info'), 'utf8')) as {
      spec: unknown;
    };
    expect(spec).toEqual({
      interactive: false,
      cluster: {
        server: cluster.server,
        'tls-server-name': 'localhost',
        'certificate-authority-data': base64(own.certificate),
        config: { audience: 'x' },
      },
    });
  });

  it('may give a client certificate', async () => {
    const pair = { clientCertificateData: login.certificate, clientKeyData: login.key };
    await ask(connect(plugin(credential(pair)), secureCluster()));
    expect(asked[0]?.client).toBe('exec-user');
  });

  it('is run again when its credentials have expired', async () => {
    const expirationTimestamp = new Date(Date.now() - 60_000).toISOString();
    const client = connect(plugin(credential({ token: 't$n', expirationTimestamp })));
    await ask(client);
    await ask(client);
    expect(tokens()).toEqual(['Bearer t1', 'Bearer t2']);
  });

  it.each([
    ['a request', ask],
    ['a command', run],
  ])('is run again after the API server refused %s', async (_, task) => {
    const expirationTimestamp = new Date(Date.now() + 3_600_000).toISOString();
    const client = connect(plugin(credential({ token: 't$n', expirationTimestamp })));
    refused.add('Bearer t1');
    await expect(task(client)).rejects.toMatchObject({ code: 'KUBE_UNAUTHORIZED' });
    await task(client);
    expect(tokens()).toEqual(['Bearer t1', 'Bearer t2']);
    expect(runs()).toBe(2);
  });

  it('is not run for each of many requests that were refused together', async () => {
    const client = connect(plugin(credential({ token: 't$n' })));
    refused.add('Bearer t1');
    await Promise.allSettled(Array.from({ length: 8 }, () => ask(client)));
    await ask(client);
    await ask(client);
    expect(runs()).toBe(2);
  });

  it.each([
    ['no JSON', 'secret-word', /its answer is not JSON$/],
    ['another kind', { kind: 'Status' }, /its answer is not an ExecCredential$/],
    [
      'another version',
      { ...credential({ token: 'secret-word' }), apiVersion: 'x/v2' },
      /asks for the apiVersion "client.authentication.k8s.io\/v1", and it answered with "x\/v2"$/,
    ],
    ['no status', { ...credential({}), status: null }, /its answer has no status$/],
    ['no credentials', credential({ token: '' }), /neither a token nor a certificate$/],
    [
      'half a certificate',
      credential({ clientKeyData: 'secret-word' }),
      /a certificate or a key, but not both$/,
    ],
    ['a number for a token', credential({ token: 5 }), /its token is not a string$/],
    [
      'no time of its end',
      credential({ token: 'x', expirationTimestamp: 'soon' }),
      /its expirationTimestamp is not a time$/,
    ],
  ])('that answers with %s is named', async (_, given, text) => {
    const error: unknown = await ask(connect(plugin(given))).catch((each: unknown) => each);
    expect(error).toMatchObject({ code: 'KUBE_UNAVAILABLE' });
    expect((error as Error).message).toMatch(/^the exec plugin "\/.*plugin" of the kubeconfig/);
    expect((error as Error).message).toMatch(text);
    expect((error as Error).message).not.toContain('secret-word');
  });

  it('that needs a terminal is not started without one', async () => {
    const client = connect(plugin(credential({ token: 't' }), { interactiveMode: 'Always' }));
    await expect(ask(client)).rejects.toThrow('it needs a terminal (interactiveMode: Always)');
  });

  it.each([
    [
      { apiVersion: 'client.authentication.k8s.io/v1alpha1' },
      /user "u" of .*: exec.apiVersion: "client.authentication.k8s.io\/v1alpha1" is not supported; use client/,
    ],
    [{ apiVersion: undefined }, /exec.apiVersion: nothing is not supported/],
    [{ command: undefined }, /exec.command: the exec plugin has no command$/],
    [{ interactiveMode: 'Sometimes' }, /exec.interactiveMode: /],
  ])('that is written down wrong (%o) is told at once', (more, text) => {
    expect(() => connect(plugin('', more))).toThrow(text);
  });
});

describe('an auth-provider', () => {
  it.each([
    ['gcp', /user "u" .* the auth-provider "gcp", .*: use the exec plugin gke-gcloud-auth-plugin$/],
    ['azure', /use the exec plugin kubelogin$/],
    ['openstack', /the auth-provider "openstack", .*: use an exec plugin$/],
  ])('%s, which kubectl does not have any more, is refused in words', (name, text) => {
    expect(() => connect({ 'auth-provider': { name, config: {} } })).toThrow(text);
  });

  it('oidc gives its id-token while it is valid', async () => {
    const token = (exp: number): string =>
      ['{}', JSON.stringify({ exp }), 's']
        .map((part) => Buffer.from(part).toString('base64url'))
        .join('.');
    const now = Math.floor(Date.now() / 1000);
    const provider = (exp: number): object => ({
      'auth-provider': { name: 'oidc', config: { 'id-token': token(exp) } },
    });
    await ask(connect(provider(now + 600)));
    expect(asked[0]?.headers.authorization).toBe(`Bearer ${token(now + 600)}`);
    await expect(ask(connect(provider(now - 600)))).rejects.toThrow(
      'the auth-provider oidc of the kubeconfig gave no token: the id-token is missing or expired',
    );
    expect(asked).toHaveLength(1);
  });
});

describe('the files of a kubeconfig', () => {
  const files = { 'client-certificate': 'client.crt', 'client-key': 'client.key' };
  const relative = (): object =>
    configOf(
      { ...files, tokenFile: 'token' },
      { server: `https://127.0.0.1:${portOf(secure)}`, 'certificate-authority': 'ca.crt' },
    );
  const putFiles = (directory: string): void => {
    put(join(directory, 'ca.crt'), own.certificate);
    put(join(directory, 'client.crt'), login.certificate);
    put(join(directory, 'client.key'), login.key);
    put(join(directory, 'token'), `token of ${basename(directory)}\n`);
  };

  it('are relative to it, and a token is read again when it was replaced', async () => {
    putFiles('one');
    const client = connected(put('one/config', relative()));
    await ask(client);
    expect(asked).toMatchObject([
      { client: 'exec-user', headers: { authorization: 'Bearer token of one' } },
    ]);
    refused.add('Bearer token of one');
    put('one/token', 'new');
    await expect(ask(client)).rejects.toMatchObject({ code: 'KUBE_UNAUTHORIZED' });
    await ask(client);
    expect(asked.at(-1)?.headers.authorization).toBe('Bearer new');
  });

  it('are relative to the file that names them, among several in KUBECONFIG', async () => {
    putFiles('second');
    const first = put('first/config', { 'current-context': 'c', clusters: null });
    const gone = join(scratch, 'gone', 'config');
    vi.stubEnv('KUBECONFIG', [gone, first, put('second/config', relative())].join(':'));
    await ask(connected());
    expect(asked[0]?.headers.authorization).toBe('Bearer token of second');
  });

  it('that are missing are named', async () => {
    await expect(ask(connect({ tokenFile: 'no-such-token' }))).rejects.toThrow(
      `cannot read ${join(scratch, 'no-such-token')}, which the kubeconfig names: ENOENT`,
    );
  });

  it('yield to data beside them', async () => {
    const cluster = { ...secureCluster(), 'certificate-authority': 'no-such-file' };
    await ask(connect({ token: 't' }, cluster));
    expect(asked).toHaveLength(1);
  });
});

describe('several files in KUBECONFIG', () => {
  it('are merged as kubectl does it: the first that says something wins', async () => {
    const first = put('merged/first', configOf({ token: 'first' }, plainCluster()));
    const other = { ...configOf({ token: 'second' }, secureCluster()), 'current-context': 'other' };
    vi.stubEnv('KUBECONFIG', `${first}:${put('merged/second', other)}`);
    await ask(connected());
    expect(asked[0]?.headers.authorization).toBe('Bearer first');
  });
});

describe('the server of a kubeconfig', () => {
  // The certificate names 127.0.0.1 and localhost, but not this address.
  const other = (more: object): object => ({
    ...secureCluster(),
    server: `https://127.0.0.2:${portOf(secure)}`,
    ...more,
  });

  it('may have a certificate of another name with tls-server-name', async () => {
    await expect(ask(connect({ token: 't' }, other({})))).rejects.toThrow(/127\.0\.0\.2/);
    const client = connect({ token: 't' }, other({ 'tls-server-name': 'localhost' }));
    await ask(client);
    await run(client);
    expect(asked).toHaveLength(2);
  });

  it('may have any certificate with insecure-skip-tls-verify', async () => {
    const unknown = { 'certificate-authority-data': undefined };
    await expect(ask(connect({ token: 't' }, other(unknown)))).rejects.toThrow(/self-signed/);
    const client = connect({ token: 't' }, other({ ...unknown, 'insecure-skip-tls-verify': true }));
    await ask(client);
    await run(client);
    expect(asked).toHaveLength(2);
  });

  it('needs no user', async () => {
    await ask(connect(undefined, secureCluster()));
    expect(asked[0]?.headers.authorization).toBeUndefined();
  });

  it('gets no secrets by plain HTTP, as that of kubectl proxy', async () => {
    await ask(connect({ token: 't' }, { server: `http://127.0.0.1:${portOf(plain)}` }));
    expect(asked[0]?.headers.authorization).toBeUndefined();
  });

  it('gets a name and a password', async () => {
    await ask(connect({ username: 'me', password: 'w:rd' }));
    expect(asked[0]?.headers.authorization).toBe(`Basic ${base64('me:w:rd')}`);
  });

  it('is watched, and runs commands, through a proxy', async () => {
    const cluster = { ...secureCluster(), 'proxy-url': `http://127.0.0.1:${portOf(proxy)}` };
    const client = connect({ token: 't' }, cluster);
    expect(await watch(client)).toEqual(['ADDED']);
    await run(client);
    expect(proxied).toBe(2);
    expect(asked).toHaveLength(2);
  });

  it.each([
    ['no server', {}, /cluster "c" of kubeconfig \/.* has no server$/],
    ['no URL', { server: 'https://' }, /cluster "c" .* a server that is no URL of http or https/],
  ])('that is %s is told', (_, cluster, text) => {
    expect(() => connect({}, cluster)).toThrow(text);
  });
  it('that the context names no user for, although it names one, is told', () => {
    const config = { ...configOf({}, plainCluster()), users: [] };
    expect(() => connected(put('kubeconfig', config))).toThrow(
      /context "c" of kubeconfig \/.* names the user "u", which is not in it$/,
    );
  });
});
