/** For dynamic imports: in a bundle, a CommonJS module has no named exports. */
export { parse, stringify } from 'yaml';
