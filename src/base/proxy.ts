import { BlockList, isIP } from 'node:net';
import { lookup } from './own-properties.ts';

type Variables = Readonly<Record<string, string | undefined>>;

/**
 * The environment's proxy for a URL, by Go's rules (golang.org/x/net/http/httpproxy):
 * `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, also in lower case. Undefined for this machine's own
 * addresses.
 */
export function proxyFor(url: URL, variables: Variables = process.env): string | undefined {
  const of = (name: string): string =>
    lookup(variables, name) || lookup(variables, name.toLowerCase()) || '';
  const named = of(url.protocol === 'https:' ? 'HTTPS_PROXY' : 'HTTP_PROXY');
  if (named === '' || isExcepted(url, of('NO_PROXY'))) return undefined;
  return named.includes('://') ? named : `http://${named}`;
}

function isExcepted({ hostname, port, protocol }: URL, exceptions: string): boolean {
  const host = hostname.replace(/^\[|\]$/g, '').toLowerCase();
  if (host === 'localhost' || isInside(host, '127.0.0.0/8') || host === '::1') return true;
  const ownPort = port || (protocol === 'https:' ? '443' : '80');
  return exceptions.split(',').some((each) => {
    const entry = each.trim().toLowerCase();
    if (entry === '*') return true;
    if (entry.includes('/')) return isInside(host, entry);
    const [, name = entry, wanted = ownPort] =
      isIP(entry) === 0 ? (/^(.*?)(?::(\d+))?$/.exec(entry) ?? []) : [];
    const bare = name.replace(/^\[|\]$/g, '').replace(/^\*(?=\.)/, '');
    if (bare === '' || wanted !== ownPort) return false;
    if (isIP(host) !== 0 || isIP(bare) !== 0) return host === bare;
    // ".example.com" matches subdomains. "example.com" also matches itself.
    return host === bare || host.endsWith(bare.startsWith('.') ? bare : `.${bare}`);
  });
}

function isInside(host: string, network: string): boolean {
  const [address = '', bits = ''] = network.split('/');
  const family = isIP(host);
  if (family === 0 || isIP(address) !== family || !/^\d+$/.test(bits)) return false;
  if (Number(bits) > (family === 4 ? 32 : 128)) return false;
  const list = new BlockList();
  const type = family === 4 ? 'ipv4' : 'ipv6';
  list.addSubnet(address, Number(bits), type);
  return list.check(host, type);
}
