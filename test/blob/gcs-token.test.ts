import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { blobId, type BlobStorage, openStorage } from '../../src/blob/index.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

/** A service that asks for tokens, and one that gives them to a workload identity. */
async function startServices(token: Handler, objects: Handler, stallMs = 5000): Promise<Services> {
  const directory = mkdtempSync(join(tmpdir(), 'gcs-token-'));
  const server = createServer((request, response) => {
    request.resume();
    (request.url === '/token' ? token : objects)(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const subject = join(directory, 'subject');
  const file = join(directory, 'credentials.json');
  writeFileSync(subject, 'subject-token');
  writeFileSync(
    file,
    JSON.stringify({
      type: 'external_account',
      audience: 'longshore',
      subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
      token_url: `${endpoint}/token`,
      credential_source: { file: subject },
    }),
  );
  const parameters = new URLSearchParams({ endpoint, credentialsFile: file });
  const storage = await openStorage(`gs://backups/?${parameters.toString()}`, {
    environment: {},
    stallMs,
  });
  return {
    storage,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

interface Services extends AsyncDisposable {
  readonly storage: BlobStorage;
}

const json = (response: ServerResponse, status: number, value: object): void => {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(value));
};

const giveToken: Handler = (_request, response) =>
  json(response, 200, {
    access_token: 'access-token',
    issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
    token_type: 'Bearer',
    expires_in: 3600,
  });

it('sends its token with every request, and asks for it once', async () => {
  const seen: (string | undefined)[] = [];
  let asked = 0;
  await using services = await startServices(
    (request, response) => {
      asked++;
      giveToken(request, response);
    },
    ({ headers }, response) => {
      seen.push(headers.authorization);
      response.writeHead(204).end();
    },
  );
  await services.storage.deleteBlob(blobId('p1'));
  await services.storage.deleteBlob(blobId('p2'));
  expect(seen).toEqual(['Bearer access-token', 'Bearer access-token']);
  expect(asked).toBe(1);
});

it.each([
  [400, { code: 'STORAGE_FAILED', retry: 'never' }],
  [403, { code: 'STORAGE_DENIED', retry: 'never' }],
  [412, { code: 'STORAGE_FAILED', retry: 'never' }],
  [503, { code: 'STORAGE_THROTTLED', retry: 'backoff' }],
])('a token refused with %s says nothing of the blob', async (status, failure) => {
  await using services = await startServices(
    (_request, response) => json(response, status, { error: 'invalid_grant' }),
    (_request, response) => response.writeHead(204).end(),
  );
  const put = services.storage.putBlob(blobId('p1'), [Buffer.of(1)], { doNotRecreate: true });
  await expect(put).rejects.toMatchObject(failure);
  await expect(put).rejects.toThrow(/token/);
});

it('a token that does not come stops nobody for good', async () => {
  let asked = 0;
  await using services = await startServices(
    (request, response) => {
      if (asked++ > 0) giveToken(request, response);
    },
    (_request, response) => response.writeHead(204).end(),
    300,
  );
  const remove = (): Promise<void> => services.storage.deleteBlob(blobId('p1'));
  const both = await Promise.allSettled([remove(), remove()]);
  expect(both).toMatchObject([
    { reason: { code: 'STORAGE_STALLED', retry: 'backoff' } },
    { reason: { code: 'STORAGE_STALLED', retry: 'backoff' } },
  ]);
  expect(asked).toBe(1);
  await remove();
});
