//! What an expression may cost, told from its text and the declared sizes of what it looks at.
//!
//! Which rules a definition may have depends on these numbers, so they follow upstream exactly, also where it is odd: a
//! size that the schema has under a path whose start is not a variable is that of `self`, and numbers have size zero.
//!
//! Upstream: cel-go/checker/cost.go, and `sizeEstimator` of
//! apiextensions-apiserver/pkg/apiserver/schema/cel/compilation.go.

mod calls;

use crate::ast::{CheckedAst, Comprehension, Element, Entry, Expr, Id, Kind, Literal, Name, operators};
use crate::decl::{DeclType, Shape};
use crate::types::Type;
use std::collections::HashMap;
use std::sync::Arc;

const STRING: f64 = 0.1;

/// The least and the most that something costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostEstimate {
    pub min: u64,
    pub max: u64,
}

/// The least and the most characters, bytes, elements or entries that something has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeEstimate {
    pub min: u64,
    pub max: u64,
}

fn times(x: u64, factor: f64) -> u64 {
    // Conversion saturates.
    (x as f64 * factor).ceil() as u64
}

impl CostEstimate {
    pub(crate) fn fixed(cost: u64) -> CostEstimate {
        CostEstimate { min: cost, max: cost }
    }

    fn add(self, other: CostEstimate) -> CostEstimate {
        CostEstimate {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    fn multiply(self, other: CostEstimate) -> CostEstimate {
        CostEstimate {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    fn by_factor(self, factor: f64) -> CostEstimate {
        CostEstimate {
            min: times(self.min, factor),
            max: times(self.max, factor),
        }
    }

    fn union(self, other: CostEstimate) -> CostEstimate {
        CostEstimate {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}

impl SizeEstimate {
    const UNKNOWN: SizeEstimate = SizeEstimate { min: 0, max: u64::MAX };

    fn fixed(size: u64) -> SizeEstimate {
        SizeEstimate { min: size, max: size }
    }

    fn add(self, other: SizeEstimate) -> SizeEstimate {
        SizeEstimate {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    fn multiply(self, other: SizeEstimate) -> SizeEstimate {
        SizeEstimate {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    fn union(self, other: SizeEstimate) -> SizeEstimate {
        SizeEstimate {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    fn by_factor(self, factor: f64) -> CostEstimate {
        CostEstimate {
            min: times(self.min, factor),
            max: times(self.max, factor),
        }
    }

    /// So many of something that costs this.
    fn of(self, cost: CostEstimate) -> CostEstimate {
        CostEstimate {
            min: self.min.saturating_mul(cost.min),
            max: self.max.saturating_mul(cost.max),
        }
    }
}

/// The estimate for an expression.
pub(crate) fn estimate(
    ast: &CheckedAst,
    variables: &[(String, Arc<DeclType>)],
    texts: Option<SizeEstimate>,
) -> CostEstimate {
    let mut estimator = Estimator {
        ast,
        variables,
        texts,
        locals: Vec::new(),
        paths: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    estimator.cost(&ast.expr)
}

/// Where something is in what is declared.
#[derive(Clone)]
enum Path {
    /// Nowhere.
    None,
    /// Not at a place that is declared.
    Undeclared,
    At(Arc<DeclType>),
}

/// The sizes of a list's or map's elements.
#[derive(Clone, Copy)]
struct EntrySize {
    is_list: bool,
    key: SizeEstimate,
    value: SizeEstimate,
}

impl EntrySize {
    fn union(one: Option<EntrySize>, two: Option<EntrySize>) -> Option<EntrySize> {
        let (one, two) = (one?, two?);
        Some(EntrySize {
            is_list: one.is_list,
            key: one.key.union(two.key),
            value: one.value.union(two.value),
        })
    }
}

struct Local {
    name: String,
    path: Path,
    size: Option<SizeEstimate>,
    entries: Option<EntrySize>,
}

struct Estimator<'e> {
    ast: &'e CheckedAst,
    variables: &'e [(String, Arc<DeclType>)],
    /// The size of all texts, if it is not what is declared.
    texts: Option<SizeEstimate>,
    locals: Vec<Local>,
    paths: HashMap<Id, Path>,
    sizes: HashMap<Id, SizeEstimate>,
    entries: HashMap<Id, EntrySize>,
}

/// What a call is estimated to cost, its arguments not included unless said, and the size of its result.
struct CallEstimate {
    cost: CostEstimate,
    size: Option<SizeEstimate>,
}

impl From<CostEstimate> for CallEstimate {
    fn from(cost: CostEstimate) -> CallEstimate {
        CallEstimate { cost, size: None }
    }
}

impl Estimator<'_> {
    /// The place that paths start from which do not start with a variable.
    fn root(&self) -> Path {
        self.variables
            .first()
            .map_or(Path::Undeclared, |(_, decl)| Path::At(decl.clone()))
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    /// A step further: a field's name, or `@items`, `@values`, `@keys`, `@indices`.
    fn step(&self, path: &Path, name: &str) -> Path {
        let decl = match path {
            Path::None => return self.root(),
            Path::Undeclared => return Path::Undeclared,
            Path::At(decl) => decl,
        };
        let found = match (decl.shape(), name) {
            (Shape::List { items, .. }, "@items" | "@values") => Some(items.clone()),
            (Shape::Map { values }, "@items" | "@values") => Some(values.clone()),
            (Shape::Map { .. }, "@keys") => Some(Arc::new(DeclType::simple(Type::String))),
            (Shape::Object(object), name) => object.field(name).map(|field| field.decl.clone()),
            _ => None,
        };
        found.map_or(Path::Undeclared, Path::At)
    }

    /// The identifier's name, if an expression is one.
    fn ident<'x>(&'x self, expr: &'x Expr) -> Option<&'x str> {
        match (self.ast.name(expr.id), &expr.kind) {
            (Some(Name::Variable(name) | Name::Local(name)), _) => Some(name),
            (None, Kind::Ident(name)) => Some(name),
            _ => None,
        }
    }

    fn path(&self, expr: &Expr) -> Path {
        if let Some(local) = self.ident(expr).and_then(|name| self.local(name)) {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or(Path::None)
    }

    fn declared_size(&self, path: &Path, ty: &Type) -> Option<SizeEstimate> {
        if let Some(size) = self.texts {
            return matches!(ty, Type::String | Type::Bytes).then_some(size);
        }
        let Path::At(decl) = path else {
            return None;
        };
        let unbounded = match decl.shape() {
            Shape::List { .. } | Shape::Map { .. } => u64::MAX,
            // Upstream has zero where nothing is said.
            _ => 0,
        };
        Some(SizeEstimate {
            min: 0,
            max: decl.max_elements().unwrap_or(unbounded),
        })
    }

    fn size(&mut self, expr: &Expr) -> Option<SizeEstimate> {
        if let Some(known) = self.sizes.get(&expr.id) {
            return Some(*known);
        }
        let own = match &expr.kind {
            Kind::Literal(Literal::String(text)) => Some(text.chars().count() as u64),
            Kind::Literal(Literal::Bytes(bytes)) => Some(bytes.len() as u64),
            Kind::Literal(_) => Some(1),
            Kind::List(elements) => Some(elements.len() as u64),
            Kind::Map(entries) => Some(entries.len() as u64),
            _ => None,
        };
        if let Some(own) = own {
            return Some(SizeEstimate::fixed(own));
        }
        let path = self.path(expr);
        if let Some(size) = self.declared_size(&path, self.ast.ty(expr.id)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.ast.ty(expr.id).is_scalar() {
            return Some(SizeEstimate::fixed(1));
        }
        self.ident(expr)
            .and_then(|name| self.local(name))
            .and_then(|local| local.size)
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> SizeEstimate {
        self.size(expr).unwrap_or(SizeEstimate::UNKNOWN)
    }

    fn entry_size(&self, expr: &Expr) -> Option<EntrySize> {
        if let Some(known) = self.entries.get(&expr.id) {
            return Some(*known);
        }
        self.ident(expr)
            .and_then(|name| self.local(name))
            .and_then(|local| local.entries)
    }

    fn set_size(&mut self, id: Id, size: Option<SizeEstimate>) {
        if let Some(size) = size {
            self.sizes.insert(id, size);
        }
    }

    fn set_entry_size(&mut self, id: Id, size: Option<EntrySize>) {
        if let Some(size) = size {
            self.entries.insert(id, size);
        }
    }

    fn cost(&mut self, expr: &Expr) -> CostEstimate {
        if self.ast.name(expr.id).is_some() && matches!(expr.kind, Kind::Ident(_) | Kind::Select { .. }) {
            return self.cost_of_ident(expr);
        }
        match &expr.kind {
            Kind::Literal(_) => CostEstimate::default(),
            Kind::Ident(_) => self.cost_of_ident(expr),
            Kind::Select {
                operand,
                field,
                test_only,
            } => self.cost_of_select(expr, operand, field, *test_only),
            Kind::Call { function, target, args } => self.cost_of_call(expr, function, target.as_deref(), args),
            Kind::List(elements) => self.cost_of_list(expr, elements),
            Kind::Map(entries) => self.cost_of_map(expr, entries),
            Kind::Struct { fields, .. } => {
                let values = fields.iter().map(|field| self.cost(&field.value));
                values.fold(CostEstimate::fixed(40), CostEstimate::add)
            }
            Kind::Comprehension(fold) if fold.is_bind() => self.cost_of_bind(expr, fold),
            Kind::Comprehension(fold) => self.cost_of_comprehension(expr, fold),
        }
    }

    fn cost_of_ident(&mut self, expr: &Expr) -> CostEstimate {
        let path = match self.ident(expr) {
            Some(name) => match self.local(name) {
                Some(local) => local.path.clone(),
                None => {
                    let decl = self.variables.iter().find(|(declared, _)| declared == name);
                    decl.map_or(Path::Undeclared, |(_, decl)| Path::At(decl.clone()))
                }
            },
            None => Path::Undeclared,
        };
        self.paths.insert(expr.id, path);
        CostEstimate::fixed(1)
    }

    fn cost_of_select(&mut self, expr: &Expr, operand: &Expr, field: &str, test_only: bool) -> CostEstimate {
        let mut sum = self.cost(operand);
        if test_only {
            return sum;
        }
        if matches!(self.ast.ty(operand.id), Type::Map(_) | Type::Object(_) | Type::Param(_)) {
            sum = sum.add(CostEstimate::fixed(1));
        }
        let path = self.step(&self.path(operand), field);
        self.paths.insert(expr.id, path);
        sum
    }

    fn cost_of_call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> CostEstimate {
        if function == "dyn" && args.len() == 1 {
            let cost = self.cost(&args[0]);
            let (size, entries) = (self.size(&args[0]), self.entry_size(&args[0]));
            self.set_size(expr.id, size);
            self.set_entry_size(expr.id, entries);
            return cost.add(CostEstimate::fixed(1));
        }
        let arg_costs: Vec<CostEstimate> = args.iter().map(|arg| self.cost(arg)).collect();
        let overloads = self.ast.overloads(expr.id);
        if overloads.is_empty() {
            return CostEstimate::default();
        }
        let sum = target.map_or(CostEstimate::default(), |target| self.cost(target));
        let mut cost = CostEstimate { min: u64::MAX, max: 0 };
        let mut result: Option<SizeEstimate> = None;
        for overload in overloads {
            let call = calls::Call {
                id: expr.id,
                function,
                overload,
                target,
                args,
                costs: &arg_costs,
            };
            let estimate = self.cost_of_overload(&call);
            cost = cost.union(estimate.cost);
            result = match (result, estimate.size) {
                (Some(one), Some(two)) => Some(one.union(two)),
                (one, two) => one.or(two),
            };
            if *overload == "index_list" || *overload == "index_map" {
                let step = if *overload == "index_list" { "@items" } else { "@values" };
                result = self.entry_size(&args[0]).map(|entry| entry.value);
                let path = self.step(&self.path(&args[0]), step);
                self.paths.insert(expr.id, path);
            }
            if result.is_none() {
                result = self.size(expr);
            }
        }
        self.set_size(expr.id, result);
        sum.add(cost)
    }

    fn cost_of_list(&mut self, expr: &Expr, elements: &[Element]) -> CostEstimate {
        let mut sum = CostEstimate::default();
        let mut item = SizeEstimate {
            min: if elements.is_empty() { 0 } else { u64::MAX },
            max: 0,
        };
        for element in elements {
            sum = sum.add(self.cost(&element.value));
            item = item.union(self.size_or_unknown(&element.value));
        }
        let size = EntrySize {
            is_list: true,
            key: SizeEstimate::fixed(1),
            value: item,
        };
        self.set_entry_size(expr.id, Some(size));
        sum.add(CostEstimate::fixed(10))
    }

    fn cost_of_map(&mut self, expr: &Expr, entries: &[Entry]) -> CostEstimate {
        let mut sum = CostEstimate::default();
        let least = if entries.is_empty() { 0 } else { u64::MAX };
        let mut size = EntrySize {
            is_list: false,
            key: SizeEstimate { min: least, max: 0 },
            value: SizeEstimate { min: least, max: 0 },
        };
        for entry in entries {
            sum = sum.add(self.cost(&entry.key)).add(self.cost(&entry.value));
            size.key = size.key.union(self.size_or_unknown(&entry.key));
            size.value = size.value.union(self.size_or_unknown(&entry.value));
        }
        self.set_entry_size(expr.id, Some(size));
        sum.add(CostEstimate::fixed(30))
    }

    fn push_local(&mut self, name: &str, path: Path, size: Option<SizeEstimate>, entries: Option<EntrySize>) {
        self.locals.push(Local {
            name: name.to_string(),
            path,
            size,
            entries,
        });
    }

    fn push_accumulator(&mut self, fold: &Comprehension) {
        let (path, entries) = (self.path(&fold.init), self.entry_size(&fold.init));
        let size = self.size(&fold.init);
        self.push_local(&fold.accu_var, path, size, entries);
    }

    fn push_iteration(&mut self, fold: &Comprehension) {
        let entries = self.entry_size(&fold.range);
        let is_list = entries.map_or_else(
            || matches!(self.ast.ty(fold.range.id), Type::List(_)),
            |entry| entry.is_list,
        );
        let path = self.path(&fold.range);
        let (key, value) = (entries.map(|entry| entry.key), entries.map(|entry| entry.value));
        match &fold.iter_var2 {
            Some(second) => {
                let (keys, values) = if is_list {
                    ("@indices", "@items")
                } else {
                    ("@keys", "@values")
                };
                self.push_local(&fold.iter_var, self.step(&path, keys), key, None);
                self.push_local(second, self.step(&path, values), value, None);
            }
            None if is_list => self.push_local(&fold.iter_var, self.step(&path, "@items"), value, None),
            None => self.push_local(&fold.iter_var, self.step(&path, "@keys"), key, None),
        }
    }

    fn cost_of_comprehension(&mut self, expr: &Expr, fold: &Comprehension) -> CostEstimate {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let outer = self.locals.len();
        self.push_accumulator(fold);
        self.push_iteration(fold);
        let turn = self.cost(&fold.condition);
        let turn = self.cost(&fold.step).add(turn);
        self.locals.truncate(outer + 1);
        sum = sum.add(self.cost(&fold.result));
        self.locals.truncate(outer);
        let turns = self.size_or_unknown(&fold.range);
        sum = sum.add(turns.of(turn));
        match fold.init.kind {
            Kind::Literal(_) => {
                let size = self.size(&fold.init);
                self.set_size(expr.id, size);
            }
            Kind::List(_) | Kind::Map(_) => {
                self.set_size(expr.id, Some(turns));
                let entries = self.entry_size(&fold.step);
                self.set_entry_size(expr.id, entries);
            }
            _ => {}
        }
        sum
    }

    fn cost_of_bind(&mut self, expr: &Expr, fold: &Comprehension) -> CostEstimate {
        let sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let outer = self.locals.len();
        self.push_accumulator(fold);
        let sum = sum.add(self.cost(&fold.result));
        self.locals.truncate(outer);
        let (size, entries) = (self.size(&fold.result), self.entry_size(&fold.result));
        self.set_size(expr.id, size);
        self.set_entry_size(expr.id, entries);
        sum
    }

    fn is_logical(function: &str) -> bool {
        function == operators::AND || function == operators::OR
    }
}
