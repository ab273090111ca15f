//! Declared types: what a schema says about a place in an object. A CEL type, the bounds that cost estimates start
//! from, and how the JSON there is read.
//!
//! Upstream: apiserver/pkg/cel/types.go (DeclType, DeclField), apiserver/pkg/cel/common/values*.go.

use crate::limits;
use crate::types::Type;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A CEL type with the bounds of its values.
#[derive(Clone, Debug)]
pub struct DeclType {
    ty: Type,
    shape: Shape,
    max_elements: Option<u64>,
    min_serialized_size: u64,
    nullable: bool,
}

/// What is inside of values of a declared type.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Nothing that is declared.
    Scalar,
    List {
        items: Arc<DeclType>,
        list_type: ListType,
    },
    /// A map from strings.
    Map {
        values: Arc<DeclType>,
    },
    Object(Arc<ObjectType>),
    /// A string or an integer (`x-kubernetes-int-or-string`), which is dynamic for expressions.
    IntOrString,
}

/// How lists compare and add (`x-kubernetes-list-type`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListType {
    /// By position.
    Atomic,
    /// As sets: without regard to order; `+` is the union.
    Set,
    /// As maps by these keys: without regard to order; in `+` elements of the right with the same keys replace.
    Map(Vec<String>),
}

/// An object type: a name and fields, which may be found out at first use only, so that large and recursive schemas
/// cost nothing until an expression looks into them.
pub struct ObjectType {
    name: String,
    fields: OnceLock<Fields>,
    make: Option<Box<dyn Fn() -> Fields + Send + Sync>>,
    /// Takes every field name, all of them dynamic (objects of policies without schema).
    open: bool,
}

/// Fields by their escaped names.
pub(crate) type Fields = BTreeMap<String, Field>;

/// A field of an object type.
#[derive(Clone, Debug)]
pub struct Field {
    /// The key in JSON, not escaped.
    pub name: String,
    pub decl: Arc<DeclType>,
}

impl DeclType {
    /// An optional of a type, such as that of `oldSelf` in rules with optionalOldSelf.
    pub fn optional(inner: &DeclType) -> DeclType {
        DeclType {
            ty: Type::optional(inner.ty.clone()),
            ..inner.clone()
        }
    }

    /// A type without bounds and without inner declarations.
    pub fn simple(ty: Type) -> DeclType {
        let min_serialized_size = match &ty {
            Type::Bool | Type::Null => limits::MIN_BOOL_SIZE,
            Type::Bytes | Type::String => limits::MIN_STRING_SIZE,
            Type::Duration => limits::MIN_DURATION_SIZE_JSON,
            Type::Timestamp => limits::JSON_DATE_SIZE,
            Type::List(_) | Type::Map(_) | Type::Object(_) => 2,
            Type::Opaque(_) => 8,
            _ => limits::MIN_NUMBER_SIZE,
        };
        let shape = match &ty {
            Type::Object(object) => Shape::Object(object.clone()),
            Type::List(item) => Shape::List {
                items: Arc::new(DeclType::simple((**item).clone())),
                list_type: ListType::Atomic,
            },
            Type::Map(entry) => Shape::Map {
                values: Arc::new(DeclType::simple(entry.1.clone())),
            },
            _ => Shape::Scalar,
        };
        DeclType {
            ty,
            shape,
            max_elements: None,
            min_serialized_size,
            nullable: false,
        }
    }

    /// The type of what has no schema.
    pub fn dynamic() -> DeclType {
        DeclType::simple(Type::Dyn)
    }

    /// A list; `max_items` is the most that it may have.
    pub fn list(items: Arc<DeclType>, list_type: ListType, max_items: Option<u64>) -> DeclType {
        DeclType {
            ty: Type::list(items.ty.clone()),
            shape: Shape::List { items, list_type },
            max_elements: max_items,
            min_serialized_size: 2,
            nullable: false,
        }
    }

    /// A map from strings; `max_properties` is the most entries that it may have.
    pub fn map(values: Arc<DeclType>, max_properties: Option<u64>) -> DeclType {
        DeclType {
            ty: Type::map(Type::String, values.ty.clone()),
            shape: Shape::Map { values },
            max_elements: max_properties,
            min_serialized_size: 2,
            nullable: false,
        }
    }

    /// An object.
    pub fn object(object: Arc<ObjectType>) -> DeclType {
        DeclType::simple(Type::Object(object))
    }

    /// A string or an integer.
    pub fn int_or_string() -> DeclType {
        DeclType {
            shape: Shape::IntOrString,
            ..DeclType::dynamic()
        }
    }

    /// The same with the most characters, bytes, items or entries that values have.
    #[must_use]
    pub fn with_max_elements(mut self, max_elements: u64) -> DeclType {
        self.max_elements = Some(max_elements);
        self
    }

    /// The same with the fewest bytes that values take in JSON.
    #[must_use]
    pub fn with_min_serialized_size(mut self, bytes: u64) -> DeclType {
        self.min_serialized_size = bytes;
        self
    }

    /// The same, where null may be.
    #[must_use]
    pub fn with_nullable(mut self, nullable: bool) -> DeclType {
        self.nullable = nullable;
        self
    }

    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    pub fn ty(&self) -> &Type {
        &self.ty
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The most characters, bytes, items or entries of a value, if that is bounded.
    pub fn max_elements(&self) -> Option<u64> {
        self.max_elements
    }

    /// The fewest bytes that a value takes in JSON.
    pub fn min_serialized_size(&self) -> u64 {
        self.min_serialized_size
    }
}

impl ObjectType {
    /// An object type with these fields: escaped name → field.
    pub fn new(name: impl Into<String>, fields: impl IntoIterator<Item = (String, Field)>) -> ObjectType {
        let object = ObjectType {
            name: name.into(),
            fields: OnceLock::new(),
            make: None,
            open: false,
        };
        object.fields.get_or_init(|| fields.into_iter().collect());
        object
    }

    /// An object type whose fields (escaped name → field) are made at the first look into it.
    pub fn lazy<F, I>(name: impl Into<String>, make: F) -> ObjectType
    where
        F: Fn() -> I + Send + Sync + 'static,
        I: IntoIterator<Item = (String, Field)>,
    {
        ObjectType {
            name: name.into(),
            fields: OnceLock::new(),
            make: Some(Box::new(move || make().into_iter().collect())),
            open: false,
        }
    }

    /// An object type that has every field, all dynamic.
    pub(crate) fn open(name: impl Into<String>) -> ObjectType {
        ObjectType {
            name: name.into(),
            fields: OnceLock::new(),
            make: None,
            open: true,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn fields(&self) -> &Fields {
        self.fields
            .get_or_init(|| self.make.as_ref().map(|make| make()).unwrap_or_default())
    }

    /// The field of this escaped name. CEL's reserved words are found with and without their escape.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let fields = self.fields();
        fields
            .get(name)
            .or_else(|| crate::escape::is_reserved(name).then(|| fields.get(&format!("__{name}__")))?)
    }

    /// Takes every field name.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

impl Field {
    /// A field whose escaped name is its name in JSON.
    pub fn new(name: impl Into<String>, decl: DeclType) -> (String, Field) {
        let name = name.into();
        let field = Field {
            name: name.clone(),
            decl: Arc::new(decl),
        };
        (name, field)
    }
}

impl fmt::Debug for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectType({})", self.name)
    }
}
