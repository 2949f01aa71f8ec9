/** For imports that wait: of a module of CommonJS itself a bundle gives no names then. */
export { parse, stringify } from 'yaml';
