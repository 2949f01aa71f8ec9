import * as net from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { HOUR_NS, type Secret, SECOND_NS, silentLogger } from '../../../src/base/index.ts';
import { BACKUPS } from '../../../src/kube/index.ts';
import { Access, clusterReviews } from '../../../src/server/index.ts';
import { FakeApi, NAMESPACE } from './support/fake-api.ts';
import { fill } from './support/objects.ts';
import { type Answer, openPage, PATIENT, saidTo, textOf } from './support/page.ts';

const COOKIE = '__Host-longshore-session';
const SAME_ORIGIN = { 'sec-fetch-site': 'same-origin' };
/** The kinds on the page. */
const KINDS = [
  ...['backups', 'restores', 'schedules', 'backuprepositories', 'backupstoragelocations'],
  ...['datauploads', 'datadownloads', 'podvolumebackups', 'podvolumerestores'],
];
const bearer = (token: string): { authorization: string } => ({ authorization: `Bearer ${token}` });

/** Words from the objects of these tests. */
const SECRETS = /nightly|shop|by-hand|velero|\d backups|default/;

describe('a page that others can reach', () => {
  let api: FakeApi;
  let page: Awaited<ReturnType<typeof openPage>>;
  beforeEach(async () => {
    api = new FakeApi();
    fill(api);
    api.tokens.set('good', { user: { username: 'ann', groups: ['ops'] }, mayList: true });
    api.tokens.set('weak', { user: { username: 'bob' }, mayList: false });
    for (const except of KINDS) {
      api.tokens.set(`no-${except}`, { user: { username: except }, mayList: { except } });
    }
    page = await openPage(api, { needsLogin: true });
    api.tokens.set('probe', { user: { username: 'probe' }, mayList: true });
    await expect
      .poll(async () => (await page.ask('/', { headers: bearer('probe') })).status, PATIENT)
      .toBe(200);
    api.tokens.delete('probe');
  });
  afterEach(() => page[Symbol.asyncDispose]());

  const login = (token: string, headers: object = {}): Promise<Answer> =>
    page.ask('/login', {
      method: 'POST',
      headers: {
        'content-type': 'application/x-www-form-urlencoded',
        'sec-fetch-site': 'same-origin',
        ...headers,
      },
      body: new URLSearchParams({ token }).toString(),
    });
  const sessionOf = ({ headers }: Answer): string =>
    (headers['set-cookie']?.[0] ?? '').split(';')[0] ?? '';

  it.each<[string, object, number]>([
    ...KINDS.map((kind): [string, object, number] => [
      `a token of somebody who may list all but ${kind}`,
      bearer(`no-${kind}`),
      403,
    ]),
    ['no token', {}, 401],
    ['a token that nobody has', bearer('wrong'), 401],
    ['a token of somebody who may list nothing', bearer('weak'), 403],
    ['a token of somebody who may', bearer('good'), 200],
    ['the same in another spelling of the scheme', { authorization: 'bearer good' }, 200],
    ['a password', { authorization: 'Basic Z29vZDpnb29k' }, 401],
    ['a token with a blank in it', bearer('good good'), 401],
    ['a token that is no token', bearer('go<od'), 401],
    ['a session that was never begun', { cookie: `${COOKIE}=${'a'.repeat(43)}` }, 401],
    ['a token in place of a session', { cookie: `${COOKIE}=good` }, 401],
  ])('answers %s', async (_, given, status) => {
    const headers = { ...given };
    for (const path of ['/', '/backups/nightly-2', '/backups/none', '/none', '/?token=good']) {
      const answer = await page.ask(path, { headers });
      const isThere = !path.includes('none');
      expect([path, answer.status]).toEqual([path, status === 200 && !isThere ? 404 : status]);
      if (status === 200) continue;
      expect(textOf(answer.body)).not.toMatch(SECRETS);
      expect(answer.headers['set-cookie']).toBeUndefined();
      // Existing and missing objects look the same.
      const other = await page.ask('/', { headers });
      expect(answer.body).toBe(other.body);
    }
    const head = await page.ask('/', { method: 'HEAD', headers });
    expect([head.status, head.body]).toEqual([status, '']);
  });

  it('asks for a bearer token in the way that browsers and programs understand', async () => {
    const { headers, body } = await page.ask('/');
    expect(headers['www-authenticate']).toMatch(/^Bearer/);
    expect(body).toMatch(/<form method="post" action="\/login">/);
    expect(body).toMatch(/<input[^>]*type="password"/);
    expect(body).not.toContain('<script');
  });

  it('answers nobody while the API server is away, and everybody when it is back', async () => {
    api.isAway = true;
    for (const token of ['good', 'weak', 'wrong']) {
      const answer = await page.ask('/', { headers: bearer(token) });
      expect([answer.status, answer.headers['retry-after']]).toEqual([503, '5']);
      expect(textOf(answer.body)).not.toMatch(SECRETS);
      expect((await login(token)).status).toBe(503);
    }
    api.isAway = false;
    expect((await page.ask('/', { headers: bearer('good') })).status).toBe(200);
  });

  it('the same where it may not review tokens', async () => {
    api.refused.add('tokenreviews');
    expect((await page.ask('/', { headers: bearer('good') })).status).toBe(503);
  });

  it('can only be read', async () => {
    for (const method of ['PUT', 'DELETE', 'PATCH', 'POST', 'OPTIONS', 'TRACE']) {
      const answer = await page.ask('/', { method, headers: bearer('good') });
      expect([method, answer.status, answer.headers.allow]).toEqual([method, 405, 'GET, HEAD']);
    }
    expect((await page.ask('//evil.example/', { headers: bearer('good') })).status).toBe(400);
    expect((await page.ask('http://evil.example/', { headers: bearer('good') })).status).toBe(400);
  });

  it('lets a browser in for an hour after a login, without its token in any address', async () => {
    const answer = await login('good');
    expect([answer.status, answer.headers.location, answer.body]).toEqual([303, '/', '']);
    const [cookie = ''] = answer.headers['set-cookie'] ?? [];
    expect(cookie).toMatch(
      new RegExp(`^${COOKIE}=[\\w-]{43}; Max-Age=3600; Path=/; Secure; HttpOnly; SameSite=Strict$`),
    );
    expect(cookie).not.toContain('good');
    const session = { cookie: `a=b; ${sessionOf(answer)}; c=d` };
    const shown = await page.ask('/', { headers: session });
    expect(shown.status).toBe(200);
    expect(shown.body).toContain('Log out');
    api.clock.advance(HOUR_NS - 2n * SECOND_NS);
    expect((await page.ask('/', { headers: session })).status).toBe(200);
    api.clock.advance(3n * SECOND_NS);
    expect((await page.ask('/', { headers: session })).status).toBe(401);
  });

  it.each([
    ['a token that nobody has', 'wrong', 401],
    ['a token of somebody who may not', 'weak', 403],
    ['none', ' ', 401],
    ['a very long one', 'x'.repeat(30_000), 401],
  ])('begins no session for %s', async (_, token, status) => {
    const answer = await login(token);
    expect([answer.status, answer.headers['set-cookie']]).toEqual([status, undefined]);
    expect(textOf(answer.body)).not.toMatch(SECRETS);
  });

  it.each([
    ['another site', { 'sec-fetch-site': 'cross-site' }],
    ['another name of the same site', { 'sec-fetch-site': 'same-site' }],
    ['another origin', { 'sec-fetch-site': undefined, origin: 'https://evil.example' }],
    ['an origin that is hidden', { 'sec-fetch-site': undefined, origin: 'null' }],
    ['nowhere', { 'sec-fetch-site': undefined }],
  ])('takes no login form and no logout from %s', async (_, headers) => {
    const given = Object.fromEntries(
      Object.entries({ ...SAME_ORIGIN, ...headers }).filter(([, value]) => value !== undefined),
    );
    const type = { 'content-type': 'application/x-www-form-urlencoded' };
    const question = { method: 'POST', headers: { ...type, ...given }, body: 'token=good' };
    expect((await page.ask('/login', question)).status).toBe(403);
    const session = sessionOf(await login('good'));
    const out = { method: 'POST', headers: { ...given, cookie: session } };
    expect((await page.ask('/logout', out)).status).toBe(403);
    expect((await page.ask('/', { headers: { cookie: session } })).status).toBe(200);
  });

  it('takes a login from its own origin where a browser says no more than that', async () => {
    const host = `page.example:8086`;
    const headers = { host, origin: `http://${host}` };
    const type = { 'content-type': 'application/x-www-form-urlencoded' };
    const question = { method: 'POST', headers: { ...type, ...headers }, body: 'token=good' };
    expect((await page.ask('/login', question)).status).toBe(303);
    const json = { 'content-type': 'application/json' };
    const other = { method: 'POST', headers: { ...json, ...headers }, body: '{"token":"good"}' };
    expect((await page.ask('/login', other)).status).toBe(401);
  });

  it('ends a session when somebody logs out, and when its token is no longer good', async () => {
    const first = { cookie: sessionOf(await login('good')) };
    const second = { cookie: sessionOf(await login('good')) };
    const out = await page.ask('/logout', {
      method: 'POST',
      headers: { ...first, 'sec-fetch-site': 'same-origin' },
    });
    expect([out.status, out.headers['set-cookie']?.[0]]).toEqual([
      303,
      `${COOKIE}=; Max-Age=0; Path=/; Secure; HttpOnly; SameSite=Strict`,
    ]);
    expect((await page.ask('/', { headers: first })).status).toBe(401);
    expect((await page.ask('/', { headers: second })).status).toBe(200);
    api.tokens.delete('good');
    api.clock.advance(29n * SECOND_NS);
    expect((await page.ask('/', { headers: second })).status).toBe(200);
    api.clock.advance(2n * SECOND_NS);
    expect((await page.ask('/', { headers: second })).status).toBe(401);
  });

  it('reads no head without end', async () => {
    const long = { authorization: `Bearer ${'x'.repeat(40_000)}` };
    expect((await page.ask('/', { headers: long })).status).toBe(431);
  });
});

describe('a page that only this machine reaches', () => {
  it('asks for no login, and answers only to names of this machine', async () => {
    const api = new FakeApi().put(BACKUPS, { metadata: { name: 'b' } });
    await using page = await openPage(api);
    await expect.poll(async () => (await page.ask('/')).status, PATIENT).toBe(200);
    for (const host of ['localhost:8086', '127.0.0.1', '[::1]:1', 'LOCALHOST']) {
      expect((await page.ask('/', { headers: { host } })).status).toBe(200);
    }
    for (const host of [
      'evil.example',
      'localhost.evil.example',
      '127.0.0.1.evil.example:80',
      'localhost:8086@evil.example',
      '127.0.0.1.',
    ]) {
      const answer = await page.ask('/', { headers: { host } });
      expect([host, answer.status]).toEqual([host, 403]);
      expect(answer.body).not.toContain('/backups/');
    }
    for (const head of ['GET / HTTP/1.0\r\n', 'GET / HTTP/1.1\r\nhost:\r\nconnection: close\r\n']) {
      expect(await saidTo(page.address, `${head}\r\n`)).toMatch(/^HTTP\/1.1 403 /);
    }
    expect((await page.ask('/login', { method: 'POST' })).status).toBe(405);
    expect(api.countOf('create')).toBe(0);
    expect((await page.ask('/')).body).not.toContain('Log out');
  });
});

describe('who may see it', () => {
  const setUp = (): { api: FakeApi; access: Access } => {
    const api = new FakeApi();
    api.tokens.set('good', { user: { username: 'ann' }, mayList: true });
    const reviews = clusterReviews(api.client, NAMESPACE);
    return { api, access: new Access({ reviews, logger: silentLogger, clock: api.clock }) };
  };

  it('is asked once for half a minute, also where the answer was no', async () => {
    const { api, access } = setUp();
    const many = await Promise.all(Array.from({ length: 50 }, () => access.verdictOf('good')));
    expect(new Set(many)).toEqual(new Set(['allowed']));
    expect(await access.verdictOf('wrong')).toBe('unknown');
    expect(await access.verdictOf('wrong')).toBe('unknown');
    expect(api.asked).toEqual([
      'create tokenreviews',
      ...KINDS.map(() => 'create subjectaccessreviews'),
      'create tokenreviews',
    ]);
    api.clock.advance(31n * SECOND_NS);
    await access.verdictOf('good');
    expect(api.asked.length).toBe(21);
  });

  it('is not remembered of an API server that did not answer', async () => {
    const { api, access } = setUp();
    api.isAway = true;
    expect(await access.verdictOf('good')).toBe('away');
    api.isAway = false;
    expect(await access.verdictOf('good')).toBe('allowed');
  });

  it('is not asked for what is no token', async () => {
    const { api, access } = setUp();
    for (const token of ['', 'a b', 'ä', 'x'.repeat(20_000), 'a\nb']) {
      expect(await access.verdictOf(token)).toBe('unknown');
    }
    expect(api.asked).toEqual([]);
  });

  it('is asked of the API server by few at a time, and of more than can wait nobody learns anything', async () => {
    let running = 0;
    let most = 0;
    const gate = Promise.withResolvers<undefined>();
    const reviews = {
      userOf: async () => {
        most = Math.max(most, ++running);
        await gate.promise;
        running--;
        return { username: 'ann' };
      },
      maySee: () => Promise.resolve(true),
    };
    const { clock } = new FakeApi();
    const access = new Access({ reviews, logger: silentLogger, clock });
    const all = Promise.all(Array.from({ length: 100 }, (_, at) => access.verdictOf(`t${at}`)));
    await expect.poll(() => most, PATIENT).toBe(4);
    gate.resolve(undefined);
    const verdicts = Map.groupBy(await all, (verdict) => verdict);
    expect([verdicts.get('allowed')?.length, verdicts.get('away')?.length]).toEqual([64, 36]);
    expect(most).toBe(4);
  });

  it('is asked about few strangers at a time, and about those who were let in whatever strangers do', async () => {
    const { api, access } = setUp();
    expect(await access.verdictOf('good')).toBe('allowed');
    const flood = async (round: number): Promise<Set<string>> => {
      const verdicts: string[] = [];
      for (let at = 0; at < 500; at++)
        verdicts.push(await access.verdictOf(`wrong-${round}-${at}`));
      return new Set(verdicts);
    };
    const reviews = (): number => api.asked.filter((what) => what === 'create tokenreviews').length;
    for (let round = 0; round < 30; round++) {
      const before = reviews();
      expect(await flood(round)).toEqual(new Set(['unknown', 'away']));
      expect(reviews() - before).toBeLessThanOrEqual(64);
      expect(await access.verdictOf('good')).toBe('allowed');
      api.clock.advance(4n * SECOND_NS);
    }
    // A guest with a revoked token is unknown.
    await flood(30);
    api.tokens.delete('good');
    api.clock.advance(30n * SECOND_NS);
    expect(await access.verdictOf('good')).toBe('unknown');
    await flood(31);
    api.clock.advance(31n * SECOND_NS);
    await flood(32);
    expect(await access.verdictOf('good')).toBe('away');
  });

  it('is asked again about a guest whom an API server was away for', async () => {
    const { api, access } = setUp();
    expect(await access.verdictOf('good')).toBe('allowed');
    api.isAway = true;
    api.clock.advance(31n * SECOND_NS);
    expect(await access.verdictOf('good')).toBe('away');
    for (let at = 0; at < 100; at++) await access.verdictOf(`wrong-${at}`);
    api.isAway = false;
    expect(await access.verdictOf('good')).toBe('allowed');
  });

  it('is told to no log with a token in it', async () => {
    const { clock } = new FakeApi();
    const lines: string[] = [];
    const note = (...words: unknown[]): void => void lines.push(JSON.stringify(words));
    const logger = { ...silentLogger, warn: note, error: note, info: note, debug: note };
    const reviews = {
      userOf: (token: Secret) =>
        Promise.reject(new Error(`spec.token: Invalid value: "${token.reveal()}"`)),
      maySee: () => Promise.resolve(true),
    };
    const access = new Access({ reviews, logger, clock });
    expect(await access.verdictOf('eyJhbGciOiJub25lIn0.e30.secret')).toBe('away');
    expect(lines.join()).toContain('spec.token: Invalid value');
    expect(lines.join()).not.toMatch(/secret|eyJ/);
  });
});

describe('the audience of a token', () => {
  it.each([
    ['for the page', {}, undefined, 200],
    ['for the API server', { audiences: ['api'] }, undefined, 401],
    ['for another service', { audiences: ['vault'] }, undefined, 401],
    ['that nobody has checked', { isUnaware: true }, undefined, 401],
    ['for an audience of the flag', { audiences: ['team'] }, ['other', 'team'], 200],
    ['for the API server, with an empty flag', { audiences: ['api'] }, [], 200],
    ['for the page, with an empty flag', {}, [], 401],
  ])('%s decides who is let in', async (_, holder, audiences, status) => {
    const api = new FakeApi();
    fill(api);
    api.tokens.set('t', { user: { username: 'ann' }, mayList: true, ...holder });
    await using page = await openPage(api, { needsLogin: true, ...(audiences && { audiences }) });
    const ask = (): Promise<Answer> => page.ask('/', { headers: bearer('t') });
    await expect.poll(async () => (await ask()).status, PATIENT).toBe(status);
    const { body } = await ask();
    if (status === 401) {
      expect(body).toContain('it is not for this page');
      expect(body.includes('--audience=longshore-status-page')).toBe(audiences === undefined);
    }
  });
});

describe('plain HTTP', () => {
  const REQUEST = 'GET / HTTP/1.1\r\nhost: page\r\nauthorization: Bearer good\r\n\r\n';

  it('is not spoken with other machines, so no token of theirs is looked at', async () => {
    const api = new FakeApi();
    api.tokens.set('good', { user: { username: 'ann' }, mayList: true });
    await using page = await openPage(api, { needsLogin: true });
    expect(await saidTo(page.address, REQUEST)).not.toContain('HTTP/1.1');
    expect(api.countOf('create tokenreviews')).toBe(0);
  });

  it('is spoken on this machine, where nobody logs in', async () => {
    const api = new FakeApi();
    await using page = await openPage(api);
    expect((await page.ask('/none')).status).toBe(404);
  });
});

describe('its listener', () => {
  it('closes a connection that says nothing, or only begins to', { timeout: 30_000 }, async () => {
    const api = new FakeApi();
    await using page = await openPage(api);
    const port = Number(/\d+$/.exec(page.address)?.[0]);
    const closed = (first: string): Promise<void> =>
      new Promise((resolve) => {
        const socket = net.connect(port, '127.0.0.1', () => socket.write(first));
        socket.on('error', () => undefined);
        socket.on('close', () => {
          resolve();
        });
        socket.resume();
      });
    await Promise.all([closed(''), closed('GET / HTTP/1.1\r\nhost: localhost\r\n')]);
  });

  it('closes a connection that asks for more before it has been answered', async () => {
    const api = new FakeApi();
    fill(api);
    await using page = await openPage(api);
    await expect.poll(async () => (await page.ask('/')).status, PATIENT).toBe(200);
    const said = await saidTo(
      page.address,
      'GET / HTTP/1.1\r\nhost: localhost\r\n\r\n'.repeat(2000),
    );
    expect(said.length).toBeLessThan(100_000);
  });

  it('answers one request after another on a connection', async () => {
    const api = new FakeApi();
    await using page = await openPage(api);
    const head = 'GET /none HTTP/1.1\r\nhost: localhost\r\n';
    const socket = net.connect(Number(/\d+$/.exec(page.address)?.[0]), '127.0.0.1');
    let answers = 0;
    socket.on('data', (part: Buffer) => {
      answers += part.toString('latin1').split('HTTP/1.1 404 ').length - 1;
      if (part.toString('latin1').endsWith('</html>') && answers < 20) {
        socket.write(`${head}\r\n`);
      }
    });
    socket.write(`${head}\r\n`);
    await expect.poll(() => answers, PATIENT).toBe(20);
    socket.destroy();
  });

  it('keeps a hundred connections; the newest replaces the oldest one without a request', async () => {
    const api = new FakeApi();
    await using page = await openPage(api);
    const port = Number(/\d+$/.exec(page.address)?.[0]);
    const sockets = new Map<net.Socket, number>();
    const open = (at: number): Promise<boolean> =>
      new Promise((resolve) => {
        const socket = net.connect(port, '127.0.0.1');
        sockets.set(socket, at);
        socket.on('error', () => undefined);
        socket.on('close', () => {
          sockets.delete(socket);
          resolve(false);
        });
        socket.on('data', () => {
          resolve(true);
        });
        socket.write('HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n');
      });
    for (let at = 0; at < 120; at++) expect(await open(at)).toBe(true);
    await expect.poll(() => sockets.size, PATIENT).toBe(100);
    expect([...sockets.values()]).toEqual(Array.from({ length: 100 }, (_, at) => at + 20));
    for (const socket of sockets.keys()) socket.destroy();
  });
});
