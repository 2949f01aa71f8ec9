import { describe, expect, it } from 'vitest';
import {
  objectWithoutSecrets,
  textWithoutSecrets,
} from '../../../src/cli/debug/without-secrets.ts';

/** No secret of these tests has it by chance. */
const HIDDEN = 'Wq7hiddenZx9';

describe('text without secrets', () => {
  it.each([
    `password=${HIDDEN}`,
    `"password": "${HIDDEN}"`,
    `repository_password: ${HIDDEN}`,
    `aws_secret_access_key = ${HIDDEN}`,
    `secretAccessKey=${HIDDEN}`,
    `AZURE_STORAGE_ACCOUNT_ACCESS_KEY=${HIDDEN}`,
    `AZURE_CLIENT_SECRET=${HIDDEN}`,
    `api_key: '${HIDDEN}'`,
    `session_token=${HIDDEN}`,
    `--repo-password=${HIDDEN} --other`,
    `--token ${HIDDEN}`,
    `Authorization: Bearer ${HIDDEN}`,
    `authorization: Basic ${HIDDEN}=`,
    `https://user:${HIDDEN}@minio:9000/bucket`,
    `https://minio/b?X-Amz-Signature=${HIDDEN}&x=1`,
    `https://minio/b?X-Amz-Security-Token=${HIDDEN}`,
    `https://a.blob/c?sv=1&sig=${HIDDEN}`,
    `token eyJhbGciOiJSUzI1NiJ9.eyJ${HIDDEN}.sig`,
    `-----BEGIN RSA PRIVATE KEY-----\n${HIDDEN}\n-----END RSA PRIVATE KEY-----`,
    // A log that ends in the middle of a key.
    `-----BEGIN PRIVATE KEY-----\n${HIDDEN}`,
    // Values that have blanks, commas, or quotes themselves.
    `"password": "correct horse ${HIDDEN}",`,
    `{"password":"a,b;c&${HIDDEN}"}`,
    `{"apiKey":"a\\"b ${HIDDEN}"}`,
    `msg="{\\"token\\":\\"a b ${HIDDEN}\\"}"`,
    `password=a,${HIDDEN}`,
    `aws_secret_access_key = a,${HIDDEN}`,
    `--repo-password "a b ${HIDDEN}"`,
    `settings:\npassword: correct horse ${HIDDEN}\nnext`,
    `settings:\n  password: |\n    ${HIDDEN}\nnext`,
    `settings:\n  token:\n    ${HIDDEN}\nnext`,
    `settings:\n  privateKey: |\n    first\n\n    ${HIDDEN}\nnext`,
    `settings:\n  client-key-data: >-\n    first\n     ${HIDDEN}\nnext`,
    `https://user:a@${HIDDEN}@minio:9000/bucket`,
    `{"auths":{"registry":{"auth":"${HIDDEN}"}}}`,
    `client-key-data: ${HIDDEN}`,
    `sse-customer-key=${HIDDEN}`,
    `privateKey: ${HIDDEN}`,
  ])('hides what is in %j', (text) => {
    const shown = textWithoutSecrets(`before ${text} after`);
    expect(shown).not.toContain(HIDDEN);
    expect(shown).toContain('***');
    expect(shown.startsWith('before ')).toBe(true);
  });

  it('hides keys of AWS by their form', () => {
    expect(textWithoutSecrets('by AKIAIOSFODNN7EXAMPLE now')).toBe('by *** now');
  });

  it.each([
    'the Secret velero/cloud-credentials has no key "cloud"',
    'time="2026-11-26T08:00:00Z" level=info msg="snapshot k1b2c3 saved: 12 files, 3.4 MiB" backup=velero/b1',
    'https://minio:9000/bucket/backups/b1?list-type=2&prefix=x',
  ])('leaves %j as it is', (text) => {
    expect(textWithoutSecrets(text)).toBe(text);
  });

  it('takes no long time for text that nearly looks like a secret', () => {
    const began = performance.now();
    for (const text of [
      '-----BEGIN '.repeat(20_000),
      'a:'.repeat(100_000),
      'token'.repeat(50_000),
      'token="'.repeat(20_000),
      "token='".repeat(20_000),
      `token=\\"x'`.repeat(20_000),
      'https://a@'.repeat(50_000),
    ]) {
      textWithoutSecrets(text);
    }
    expect(performance.now() - began).toBeLessThan(5000);
  });
});

describe('objects without secrets', () => {
  it('hides values by the names of variables and settings, and keeps what only names a Secret', () => {
    const pod = {
      metadata: {
        name: 'server',
        managedFields: [{ manager: 'kubectl' }],
        annotations: {
          'kubectl.kubernetes.io/last-applied-configuration': `{"x":"${HIDDEN}"}`,
          note: 'kept',
        },
      },
      spec: {
        containers: [
          {
            args: ['server', `--repo-password=${HIDDEN}`, '--token', HIDDEN, '--access-key', '-v'],
            env: [
              { name: 'AWS_SECRET_ACCESS_KEY', value: HIDDEN },
              { name: 'MY_TOKEN', value: HIDDEN },
              // Of the object store in Velero's own examples.
              { name: 'MINIO_SECRET_KEY', value: HIDDEN },
              { name: 'DB_PASS', value: HIDDEN },
              { name: 'NODE_NAME', value: 'n1' },
              { name: 'PASSWORD', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } },
            ],
          },
        ],
        volumes: [{ name: 'cloud', secret: { secretName: 'cloud-credentials' } }],
        credential: { name: 'cloud-credentials', key: 'cloud' },
        config: { region: 'eu', accessKey: HIDDEN, profile: 'p' },
      },
      data: { 'repo-password': HIDDEN, settings: `a: 1\npassword: ${HIDDEN}\n` },
    };
    const text = JSON.stringify(objectWithoutSecrets(pod));
    expect(text).not.toContain(HIDDEN);
    expect(text).not.toContain('managedFields');
    expect(objectWithoutSecrets(pod)).toMatchObject({
      metadata: { name: 'server', annotations: { note: 'kept' } },
      spec: {
        containers: [
          {
            args: ['server', '--repo-password=***', '--token', '***', '--access-key', '-v'],
            env: [
              { name: 'AWS_SECRET_ACCESS_KEY', value: '***' },
              { name: 'MY_TOKEN', value: '***' },
              { name: 'MINIO_SECRET_KEY', value: '***' },
              { name: 'DB_PASS', value: '***' },
              { name: 'NODE_NAME', value: 'n1' },
              { name: 'PASSWORD', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } },
            ],
          },
        ],
        volumes: [{ name: 'cloud', secret: { secretName: 'cloud-credentials' } }],
        credential: { name: 'cloud-credentials', key: 'cloud' },
        config: { region: 'eu', accessKey: '***', profile: 'p' },
      },
    });
  });
});
